import { setTimeout as sleep } from 'node:timers/promises';
import type { OnceContext, OnceService } from '../../lib/index.js';
import { type HistoryEvent, nowMs } from './history.js';
import type { Random } from './random.js';
import { ONCE } from './settings.js';
import { pass, type Seen, watchBackends } from './traps.js';

class Declined extends Error {
  override readonly name = 'Declined';
}

/** What a body of a call is to do. */
interface Body {
  readonly n: number;
  readonly on: string;
  readonly payload: string;
  readonly value: string;
  readonly ms: number;
  readonly fails: boolean;
}

/** Calls that are answered once. All workers ask for the same few keys at a time, and some of them again later. */
export class OnceTasks {
  readonly #seen: Seen;

  constructor(
    private readonly once: OnceService,
    private readonly worker: number,
    private readonly startMs: number,
    private readonly write: (event: HistoryEvent) => void,
  ) {
    this.#seen = watchBackends((on, fence) => write({ type: 'completed', worker, on, fence, atMs: nowMs() }));
  }

  /** Returns the key of a call, and what it runs as the n-th call of its worker. */
  next(random: Random): { on: string; payload: string; run(n: number): ReturnType<OnceTasks['run']> } {
    const now = Math.floor((nowMs() - this.startMs) / ONCE.slotMs);
    const slot = random.chance(0.85) ? now : now - random.between(1, ONCE.slotsBack);
    const kind = random.pick(['run', 'refuse'] as const);
    const on = `${kind} ${random.between(0, 2)} of ${slot}`;
    const payload = random.chance(0.04) ? 'other' : 'usual';
    const body = {
      ...{
        on,
        payload,
        value: `${payload} ${'x'.repeat(random.between(0, 400))}`,
        fails: random.chance(0.3),
      },
      ms: random.chance(0.06) ? random.between(ONCE.leaseMs, ONCE.longestBodyMs) : random.between(0, 20),
    };
    const waitMs = random.chance(0.5) ? ONCE.waitMs : 0;
    return {
      on,
      payload,
      run: (n) => this.run({ ...body, n, value: `${this.worker}:${n} ${body.value}` }, kind, waitMs),
    };
  }

  async run(body: Body, afterCrash: 'run' | 'refuse', waitMs: number) {
    const { on: key, payload } = body;
    const { value, ...rest } = await this.once.run((context) => this.#body(context, body), {
      ...{ key, payload, afterCrash, waitMs, leaseMs: ONCE.leaseMs, keepMs: ONCE.keepMs },
    });
    pass('its caller was told');
    return { value: value.text, ...rest };
  }

  /** Works as long as its signal says that it may, and notes when that was last so. */
  async #body(
    { attempt, fence, signal }: OnceContext,
    { n, on, payload, value, ms, fails }: Body,
  ): Promise<{ text: string }> {
    const { worker } = this;
    const fromMs = nowMs();
    const isLate = signal.aborted;
    const claimedMs = this.#seen.claimedMs(on, fence);
    const names = { worker, n, on, payload, value, attempt, fence };
    this.write({ type: 'began', ...names, claimedMs, isLate, atMs: fromMs });
    let heldUntilMs = fromMs;
    let failed = true;
    const check = (): void => {
      const atMs = nowMs();
      signal.throwIfAborted();
      heldUntilMs = atMs;
    };
    try {
      pass('in the body');
      do {
        await sleep(3);
        check();
      } while (nowMs() < fromMs + ms);
      this.write({ type: 'effect', worker, n, atMs: heldUntilMs });
      pass('after the effect');
      await sleep(0);
      if (fails) throw new Declined('The card was declined.');
      failed = false;
      return { text: value };
    } finally {
      this.write({ type: 'over', worker, n, heldUntilMs, failed, atMs: nowMs() });
    }
  }
}
