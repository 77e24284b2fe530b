import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../..');

/** What must not be: a file, what it imports, and the rule that says so. */
const FORBIDDEN: [file: string, statement: string, rule: string][] = [
  ['lib/lock/cycle.ts', `import './lock.errors.js';`, 'no-cycles'],
  ['lib/lock/gone.ts', `import './nowhere.js';`, 'no-dead-imports'],
  ['lib/lock/lock.validate.ts', `import '../limit/limit.types.js';`, 'features-apart'],
  ['lib/secret/secret.types.ts', `import type {} from '../budget/budget.types.js';`, 'features-apart'],
  ['lib/lock/lock.service.ts', `import '../redis/redis.client.js';`, 'policy-sees-the-port'],
  ['lib/lock/with-lock.decorator.ts', `import '../script/fragments.js';`, 'policy-sees-the-port'],
  ['lib/limit/rate-limit.guard.ts', `import './limit.redis-backend.js';`, 'policy-sees-the-port'],
  ['lib/limit/rate-limit.interceptor.ts', `import './limit.memory-backend.js';`, 'policy-sees-the-port'],
  ['lib/budget/budget.service.ts', `import './budget.helper.js';`, 'policy-sees-the-port'],
  ['lib/secret/secret.memory-backend.ts', `import '../redis/redis.keys.js';`, 'memory-without-redis'],
  ['lib/budget/budget.memory-backend.ts', `import './budget.helper.js';`, 'memory-without-redis'],
  ['lib/lock/lease.ts', `import { Redis } from 'ioredis';`, 'ioredis-as-a-type'],
  ['lib/script/script-runner.ts', `import { type RedisOptions, Redis } from 'ioredis';`, 'ioredis-as-a-type'],
  ['lib/lock/lock.backend.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  ['lib/lock/lock.redis-backend.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  ['lib/lock/lock.memory-backend.ts', `import type { Type } from '@nestjs/core';`, 'backends-without-nest'],
  ['lib/lock/lock.scripts.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  ['lib/script/define-script.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  ['lib/redis/redis.errors.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  ['lib/core.ts', `import './lock/lock.nest.js';`, 'entries-without-nest'],
  ['lib/compat.ts', `import './lock/lock.nest.js';`, 'entries-without-nest'],
  ['lib/script/deadlines.ts', `import '../lock/lock.types.js';`, 'downward-only'],
  ['lib/redis/redis.readiness.ts', `import '../script/fragments.js';`, 'redis-at-the-bottom'],
  ['lib/lock/tracked-handles.ts', `import '../syncguard.module.js';`, 'features-below-assembly'],
  ['lib/backend/memory-backends.ts', `import '../testing/fake-clock.js';`, 'testing-on-top'],
  ['lib/clock.ts', `import express from 'express';`, 'peers-only'],
  ['lib/keys.ts', `import '../test/support/redis.js';`, 'peers-only'],
  ['lib/limit/limited-call.ts', `import type {} from '@nestjs/websockets';`, 'optional-packages-late'],
  [
    'lib/limit/rate-limit.exception.ts',
    `import { RpcException } from '@nestjs/microservices';`,
    'optional-packages-lazy',
  ],
  ['sample/main.ts', `import '../lib/clock.js';`, 'sample-is-a-user'],
];

/** What must be allowed: the same rules, looked at from the other side. */
const ALLOWED: [file: string, statement: string][] = [
  ['lib/redis/redis.connect.ts', `import { Redis } from 'ioredis';`],
  ['lib/redis/redis.client.ts', `import type { Redis } from 'ioredis';`],
  ['lib/redis/redis.keys.ts', `import { createHash } from 'node:crypto';`],
  ['lib/script/fragments.ts', `import type { RedisClient } from '../redis/redis.client.js';`],
  ['lib/lock/lock.types.ts', `import '../syncguard.errors.js';`],
  ['lib/lock/lock.errors.ts', `import './cycle.js';`],
  ['lib/lock/lock.nest.ts', `import type { Type } from '@nestjs/common';`],
  ['lib/limit/limit.types.ts', `import type { ExecutionContext } from '@nestjs/common';`],
  ['lib/limit/limit.redis-backend.ts', `import '../script/fragments.js'; import './limit.types.js';`],
  ['lib/limit/limit.memory-backend.ts', `import './limit.types.js';`],
  ['lib/budget/budget.types.ts', ''],
  ['lib/budget/budget.helper.ts', `import '../redis/redis.keys.js';`],
  ['lib/syncguard.errors.ts', ''],
  ['lib/syncguard.module.ts', `import { Module } from '@nestjs/common'; import './backend/backends.js';`],
  ['lib/backend/backends.ts', `import '../limit/limit.redis-backend.js';`],
  ['lib/index.ts', `import './syncguard.module.js';`],
  ['lib/testing/fake-clock.ts', ''],
  [
    'lib/testing/index.ts',
    `import '../syncguard.module.js'; import '../limit/limit.memory-backend.js'; import './fake-clock.js';`,
  ],
  ['sample/app.ts', `import { X } from 'nestjs-syncguard'; import { Redis } from 'ioredis';`],
  ['test/support/redis.ts', `import '../../lib/index.js';`],
];

interface Violation {
  from: string;
  rule: { name: string };
}

/** What the check says of a tree with these files; under the project's own configuration and settings. */
function check(files: readonly (readonly string[])[]): Violation[] {
  const folder = mkdtempSync(join(tmpdir(), 'syncguard-architecture-'));
  try {
    symlinkSync(join(ROOT, 'node_modules'), join(folder, 'node_modules'));
    writeFileSync(
      join(folder, 'tsconfig.json'),
      JSON.stringify({
        compilerOptions: {
          module: 'nodenext',
          moduleResolution: 'nodenext',
          paths: { 'nestjs-syncguard': ['./lib/index.ts'] },
        },
      }),
    );
    for (const [file = '', statement] of files) {
      mkdirSync(dirname(join(folder, file)), { recursive: true });
      writeFileSync(join(folder, file), `${statement}\nexport {};\n`);
    }
    const program = join(ROOT, 'node_modules/dependency-cruiser/bin/dependency-cruise.mjs');
    const args = ['--config', join(ROOT, '.dependency-cruiser.cjs'), '-T', 'json', 'lib', 'sample', 'test'];
    const { stdout, stderr } = spawnSync(process.execPath, [program, ...args], {
      cwd: folder,
      encoding: 'utf8',
      maxBuffer: 64 * 1024 * 1024,
    });
    if (!stdout) throw new Error(`dependency-cruiser failed: ${stderr}`);
    return (JSON.parse(stdout) as { summary: { violations: Violation[] } }).summary.violations;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

describe('the architecture check', () => {
  let violations: Violation[];
  beforeAll(() => {
    violations = check([...ALLOWED, ...FORBIDDEN]);
  });

  it.each(FORBIDDEN)('%s may not %s (%s)', (file, _, rule) => {
    expect(violations.filter(({ from }) => from === file).map((found) => found.rule.name)).toContain(rule);
  });

  it('says nothing of what is allowed', () => {
    const found = violations.filter(({ from }) => ALLOWED.some(([file]) => file === from));
    expect(found.map(({ from, rule }) => [from, rule.name])).toEqual([]);
  });

  it('has no rule that is not tried here', () => {
    const { forbidden } = jest.requireActual<{ forbidden: { name: string }[] }>(
      '../../.dependency-cruiser.cjs',
    );
    expect(forbidden.map(({ name }) => name).sort()).toEqual(
      [...new Set(FORBIDDEN.map(([, , rule]) => rule))].sort(),
    );
  });
});
