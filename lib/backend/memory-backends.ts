import { type Clock, systemClock } from '../clock.js';
import type { LockBackend } from '../lock/lock.backend.js';
import { MemoryLockBackend } from '../lock/lock.memory-backend.js';
import type { MemoryCapabilities } from '../lock/lock.types.js';
import type { Backends } from './backends.js';

export function memoryBackends(clock: Clock = systemClock): Backends<MemoryCapabilities> {
  return { lock: new MemoryLockBackend(clock) };
}

/**
 * Locks in this process's memory, without Nest: for one process, and for tests.
 *
 * @param config.clock - where the time comes from; the system's clock
 * @example
 * const locks = createMemoryBackend();
 * const lock = await locks.acquire({ key: 'order:7', ttlMs: 30_000 });
 */
export const createMemoryBackend = (config: { clock?: Clock } = {}): LockBackend<MemoryCapabilities> =>
  memoryBackends(config.clock).lock;
