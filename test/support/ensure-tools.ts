import { spawnSync } from 'node:child_process';
import { postgresPrograms } from './postgres-server.js';
import { CLOCK_SHIM_SOURCE } from './server-clock.js';

const PACKAGES = 'redis-server redis-sentinel postgresql gcc libc6-dev lua-check';

/**
 * The lock is for two test runs at once. policy-rc.d is how Debian is told to start no service that it installs; one
 * that is there already belongs to the machine and stays.
 */
const INSTALL = `
  exec 9>/tmp/syncguard-install.lock && flock 9
  policy=/usr/sbin/policy-rc.d
  if [ ! -e $policy ]; then
    trap 'rm -f $policy' EXIT INT TERM
    printf '#!/bin/sh\\nexit 101\\n' >$policy && chmod +x $policy
  fi
  export DEBIAN_FRONTEND=noninteractive
  apt-get update && apt-get install -y --no-install-recommends ${PACKAGES}
`;

const hint = (missing: string[]): string => `The tests need ${missing.join(', ')}. Install them with:
  Debian, Ubuntu: sudo apt-get install -y --no-install-recommends ${PACKAGES}
  Fedora:         sudo dnf install -y redis postgresql-server gcc glibc-devel luarocks && sudo luarocks install luacheck
  macOS:          brew install redis postgresql luacheck && xcode-select --install
                  (the servers' clock is moved by LD_PRELOAD, which macOS lacks: run the tests in a Linux container)`;

/** Makes sure that the tests can start servers of their own: installs what is missing where it can, else throws. */
export function ensureTools(env: NodeJS.ProcessEnv = process.env): void {
  const missing = missingTools(env);
  if (missing.length === 0) return;
  if (!canInstall(env)) throw new Error(hint(missing));

  console.log(`Installing ${PACKAGES} (apt-get), for want of ${missing.join(', ')}; no service is started.`);
  const { status, stdout, stderr } = spawnSync('sh', ['-c', INSTALL], { env, encoding: 'utf8' });
  const stillMissing = missingTools(env);
  if (stillMissing.length > 0) {
    throw new Error(
      `${hint(stillMissing)}\napt-get ended with ${status}:\n${stdout.slice(-1000)}${stderr.slice(-2000)}`,
    );
  }
}

function missingTools(env: NodeJS.ProcessEnv): string[] {
  const has = {
    'redis-server >= 6.2': isRecentRedis('redis-server', env),
    'redis-sentinel >= 6.2': isRecentRedis('redis-sentinel', env),
    'postgres (the server)': postgresPrograms(env.PATH ?? '') !== undefined,
    'gcc with the headers of libc': run('gcc', ['-fsyntax-only', CLOCK_SHIM_SOURCE], env) !== undefined,
    luacheck: run('luacheck', ['--version'], env) !== undefined,
  };
  return Object.entries(has).flatMap(([tool, found]) => (found ? [] : [tool]));
}

function isRecentRedis(binary: string, env: NodeJS.ProcessEnv): boolean {
  const version = /v=(\d+)\.(\d+)/.exec(run(binary, ['--version'], env) ?? '');
  return version !== null && Number(version[1]) * 100 + Number(version[2]) >= 602;
}

function canInstall(env: NodeJS.ProcessEnv): boolean {
  return process.getuid?.() === 0 && run('apt-get', ['--version'], env) !== undefined;
}

/** What a command printed; undefined when it is not there or failed. */
function run(command: string, args: string[], env: NodeJS.ProcessEnv): string | undefined {
  const { status, stdout } = spawnSync(command, args, { env, encoding: 'utf8' });
  return status === 0 ? stdout : undefined;
}
