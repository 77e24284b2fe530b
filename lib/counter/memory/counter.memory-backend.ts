import { refuseAborted } from '../../core/validate.js';
import { type Clock, systemClock } from '../../core/clock.js';
import { IdleSweep } from '../../core/idle-sweep.js';
import type { CallOptions } from '../../core/validate.js';
import type { CounterBackend, CounterCall, CounterReply } from '../counter.backend.js';
import { CounterError } from '../counter.errors.js';

interface Window {
  count: number;
  readonly endsAtMs: number;
  /** The count after each call whose id is remembered, by that id. */
  readonly calls: Map<string, number>;
}

/** Counters of one process. They behave as those of the Redis backend. */
export class MemoryCounterBackend implements CounterBackend {
  readonly #windows = new Map<string, Window>();
  readonly #idleSweep = new IdleSweep(() => this.#sweep());

  constructor(private readonly clock: Clock = systemClock) {}

  async increment(call: CounterCall, { signal }: CallOptions): Promise<CounterReply> {
    refuseAborted(signal, CounterError);
    const { key, max, cost, windowMs, callId, remember } = call;
    const nowMs = this.clock.now();
    const open = this.#open(key);
    const counted = open?.calls.get(callId);
    if (open && counted !== undefined) return { ok: true, count: counted, resetMs: open.endsAtMs - nowMs };
    if ((open?.count ?? 0) > max - cost) return { ok: false, ...this.#read(key) };
    const window = open ?? { count: 0, endsAtMs: nowMs + windowMs, calls: new Map<string, number>() };
    if (!open) this.#idleSweep.grow(this.#windows.size);
    this.#windows.set(key, window);
    window.count += cost;
    if (remember) window.calls.set(callId, window.count);
    return { ok: true, ...this.#read(key) };
  }

  async peek(key: string, { signal }: CallOptions): Promise<Omit<CounterReply, 'ok'>> {
    refuseAborted(signal, CounterError);
    return this.#read(key);
  }

  async reset(key: string, { signal }: CallOptions): Promise<void> {
    refuseAborted(signal, CounterError);
    this.#windows.delete(key);
  }

  #read(key: string): Omit<CounterReply, 'ok'> {
    const open = this.#open(key);
    return open ? { count: open.count, resetMs: open.endsAtMs - this.clock.now() } : { count: 0, resetMs: 0 };
  }

  #open(key: string): Window | undefined {
    const window = this.#windows.get(key);
    if (!window || this.clock.now() < window.endsAtMs) return window;
    this.#windows.delete(key);
    return undefined;
  }

  /** Drops windows that have ended, and returns how many are left. */
  #sweep(): number {
    for (const key of this.#windows.keys()) this.#open(key);
    return this.#windows.size;
  }
}
