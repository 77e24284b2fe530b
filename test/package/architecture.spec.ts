import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join, resolve } from 'node:path';

const ROOT = resolve(__dirname, '../..');

/** What must not be: a file, what it imports, and the rule that says so. */
const FORBIDDEN: [file: string, statement: string, rule: string][] = [
  ['lib/lock/cycle.ts', `import './lock.errors.js';`, 'no-cycles'],
  ['lib/lock/gone.ts', `import './nowhere.js';`, 'no-dead-imports'],
  ['lib/core/clock.ts', `import '../lock/lock.types.js';`, 'core-looks-down'],
  ['lib/redis/redis.readiness.ts', `import '../script/fragments.js';`, 'redis-looks-down'],
  ['lib/script/batch.ts', `import '../lock/lock.types.js';`, 'script-looks-down'],
  ['lib/telemetry/observe.ts', `import '../limit/limit.types.js';`, 'telemetry-looks-down'],
  ['lib/transport/refusal.ts', `import '../budget/budget.types.js';`, 'transport-looks-down'],
  ['lib/method/wrap-method.ts', `import '../transport/context-exceptions.js';`, 'method-looks-down'],
  ['lib/lock/lock.validate.ts', `import '../limit/limit.types.js';`, 'features-look-down'],
  ['lib/secret/secret.types.ts', `import type {} from '../budget/budget.types.js';`, 'features-look-down'],
  ['lib/counter/counter.types.ts', `import type {} from '../limit/limit.types.js';`, 'features-look-down'],
  ['lib/lock/tracked-handles.ts', `import '../module/syncguard.module.js';`, 'features-look-down'],
  ['lib/limit/limit.options.ts', `import '../assembly/backends.js';`, 'features-look-down'],
  ['lib/assembly/observed-backends.ts', `import '../module/syncguard.module.js';`, 'assembly-looks-down'],
  ['lib/assembly/lock-backends.ts', `import '../testing/fake-clock.js';`, 'assembly-looks-down'],
  ['lib/module/syncguard.health.ts', `import '../testing/fake-clock.js';`, 'module-looks-down'],
  ['lib/testing/harness.ts', `import '../script/fragments.js';`, 'testing-looks-down'],
  ['lib/testing/entry.ts', `import '../index.js';`, 'entries-on-top'],
  ['lib/lock/lock.service.ts', `import '../redis/redis.client.js';`, 'policy-sees-the-port'],
  ['lib/lock/with-lock.decorator.ts', `import '../script/fragments.js';`, 'policy-sees-the-port'],
  [
    'lib/limit/route/rate-limit.guard.ts',
    `import '../redis/limit.redis-backend.js';`,
    'policy-sees-the-port',
  ],
  [
    'lib/limit/abuse-limiter.service.ts',
    `import './memory/limit.memory-backend.js';`,
    'policy-sees-the-port',
  ],
  ['lib/budget/budget.service.ts', `import './budget.helper.js';`, 'policy-sees-the-port'],
  [
    'lib/secret/memory/secret.memory-backend.ts',
    `import '../../redis/redis.keys.js';`,
    'memory-without-redis',
  ],
  ['lib/budget/budget.helper.ts', `import '../redis/redis.keys.js';`, 'policy-sees-the-port'],
  ['lib/budget/memory/budget.memory-backend.ts', `import '../budget.helper.js';`, 'memory-without-redis'],
  ['lib/limit/limit.policy.ts', `import './route/rate-limit.metadata.js';`, 'limits-without-routes'],
  ['lib/lock/lease.ts', `import { Redis } from 'ioredis';`, 'ioredis-as-a-type'],
  ['lib/script/script-runner.ts', `import { type RedisOptions, Redis } from 'ioredis';`, 'ioredis-as-a-type'],
  ['lib/lock/lock.backend.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  [
    'lib/lock/redis/lock.redis-backend.ts',
    `import { Logger } from '@nestjs/common';`,
    'backends-without-nest',
  ],
  [
    'lib/lock/memory/lock.memory-backend.ts',
    `import type { Type } from '@nestjs/core';`,
    'backends-without-nest',
  ],
  ['lib/lock/redis/lock.scripts.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  ['lib/script/define-script.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  ['lib/limit/limit.backend.ts', `import type {} from './policy.types.js';`, 'backends-without-nest'],
  ['lib/redis/redis.errors.ts', `import { Logger } from '@nestjs/common';`, 'backends-without-nest'],
  ['lib/core.ts', `import './lock/lock.nest.js';`, 'entries-without-nest'],
  ['lib/compat.ts', `import './lock/lock.nest.js';`, 'entries-without-nest'],
  ['lib/core/errors.ts', `import express from 'express';`, 'peers-only'],
  ['lib/core/keys.ts', `import '../../test/support/redis.js';`, 'peers-only'],
  ['lib/limit/route/limited-call.ts', `import type {} from '@nestjs/websockets';`, 'optional-packages-late'],
  [
    'lib/transport/context-exceptions.ts',
    `import { RpcException } from '@nestjs/microservices';`,
    'optional-packages-lazy',
  ],
  ['lib/core/settle-within.ts', `import { metrics } from '@opentelemetry/sdk-metrics';`, 'peers-only'],
  ['lib/telemetry/telemetry.ts', `import './otel.metrics.js';`, 'opentelemetry-by-its-entry'],
  ['sample/main.ts', `import '../lib/core/clock.js';`, 'sample-is-a-user'],
];

/** Each of the two files imports downwards, but their folders import each other. */
const FOLDER_CYCLE: [file: string, statement: string][] = [
  ['lib/assembly/one/up.ts', `import '../two/down.js';`],
  ['lib/assembly/one/other.ts', ''],
  ['lib/assembly/two/down.ts', ''],
  ['lib/assembly/two/back.ts', `import '../one/other.js';`],
];

/** What must be allowed: the same rules, looked at from the other side. */
const ALLOWED: [file: string, statement: string][] = [
  ['lib/redis/redis.connect.ts', `import { Redis } from 'ioredis';`],
  ['lib/redis/redis.client.ts', `import type { Redis } from 'ioredis';`],
  ['lib/redis/redis.keys.ts', `import { createHash } from 'node:crypto';`],
  ['lib/script/fragments.ts', `import type { RedisClient } from '../redis/redis.client.js';`],
  ['lib/lock/lock.types.ts', `import '../core/time.js';`],
  ['lib/lock/lock.errors.ts', `import './cycle.js';`],
  [
    'lib/lock/lock.nest.ts',
    `import type { Type } from '@nestjs/common'; import '../method/replace-method.js';`,
  ],
  ['lib/limit/limit.types.ts', ''],
  ['lib/limit/policy.types.ts', `import type { ExecutionContext } from '@nestjs/common';`],
  [
    'lib/limit/redis/limit.redis-backend.ts',
    `import '../../script/fragments.js'; import '../limit.types.js';`,
  ],
  ['lib/limit/memory/limit.memory-backend.ts', `import '../limit.types.js';`],
  ['lib/limit/route/rate-limit.metadata.ts', `import '../limit.types.js';`],
  ['lib/budget/budget.types.ts', ''],
  ['lib/core/time.ts', ''],
  ['lib/method/replace-method.ts', ''],
  [
    'lib/module/syncguard.module.ts',
    `import { Module } from '@nestjs/common'; import '../assembly/backends.js';`,
  ],
  ['lib/assembly/backends.ts', `import '../limit/redis/limit.redis-backend.js';`],
  ['lib/index.ts', `import './module/syncguard.module.js';`],
  ['lib/telemetry/otel.metrics.ts', `import { metrics } from '@opentelemetry/api';`],
  ['lib/opentelemetry.ts', `import './telemetry/otel.metrics.js';`],
  ['lib/testing/fake-clock.ts', ''],
  [
    'lib/testing/index.ts',
    `import '../module/syncguard.module.js'; import '../limit/memory/limit.memory-backend.js'; import './fake-clock.js';`,
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
    violations = check([...ALLOWED, ...FORBIDDEN, ...FOLDER_CYCLE]);
  });

  it.each(FORBIDDEN)('%s may not %s (%s)', (file, _, rule) => {
    expect(violations.filter(({ from }) => from === file).map((found) => found.rule.name)).toContain(rule);
  });

  it('finds two folders that import each other', () => {
    const found = violations.filter(({ rule }) => rule.name === 'no-folder-cycles').map(({ from }) => from);
    expect(found).toEqual(expect.arrayContaining(['lib/assembly/one', 'lib/assembly/two']));
  });

  it('says nothing of what is allowed', () => {
    const files = [...ALLOWED, ...FOLDER_CYCLE].map(([file]) => file);
    const found = violations.filter(({ from }) => files.includes(from));
    expect(found.map(({ from, rule }) => [from, rule.name])).toEqual([]);
  });

  it('has no rule that is not tried here', () => {
    const { forbidden } = jest.requireActual<{ forbidden: { name: string }[] }>(
      '../../.dependency-cruiser.cjs',
    );
    expect(forbidden.map(({ name }) => name).sort()).toEqual(
      [...new Set([...FORBIDDEN.map(([, , rule]) => rule), 'no-folder-cycles'])].sort(),
    );
  });
});
