import { randomUUID } from 'node:crypto';
import { WaitingRoom } from '../../lib/core/waiting-room.js';
import type { Claim, OnceBackend } from '../../lib/once/once.backend.js';
import { OnceError } from '../../lib/once/once.errors.js';
import { type OnceModuleOptions, resolveOnceDefaults } from '../../lib/once/once.options.js';
import { OnceService, type OnceServiceConfig } from '../../lib/once/once.service.js';

/** A backend under test, and the clock by which its leases and records end. */
export interface OnceUnderTest {
  backend(): OnceBackend;
  advance(ms: number): void;
  /** Everything that the backend stores. */
  contents(): Promise<string>;
}

export const onceService = (
  backend: OnceBackend,
  options: OnceModuleOptions = {},
  config: Partial<OnceServiceConfig> = {},
): OnceService =>
  new OnceService(backend, {
    once: resolveOnceDefaults(options),
    shutdown: { drainMs: 1_000 },
    waitingRoom: new WaitingRoom({ perKey: 1_000, perProcess: 10_000 }),
    ...config,
  });

export const claimOf = (key: string, given: Partial<Claim> = {}): Claim => ({
  key,
  nonce: randomUUID(),
  print: '-',
  leaseMs: 30_000,
  keepMs: 3_600_000,
  afterCrash: 'run',
  waiter: '-',
  waitMs: 0,
  ...given,
});

export const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (error instanceof OnceError ? error.code : `not an OnceError: ${String(error)}`),
  );

/** A body that is over when it is told so. */
export function heldBody<T>(value: T): {
  fn: () => Promise<T>;
  started: Promise<void>;
  end(): void;
  fail(error: Error): void;
} {
  let end = (): void => {};
  let fail = (_error: Error): void => {};
  let begin = (): void => {};
  const started = new Promise<void>((resolve) => (begin = resolve));
  const held = new Promise<T>((resolve, reject) => {
    end = () => resolve(value);
    fail = reject;
  });
  held.catch(() => {});
  return { fn: () => (begin(), held), started, end: () => end(), fail: (error) => fail(error) };
}
