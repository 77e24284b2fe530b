import * as fc from 'fast-check';
import { MemoryOnceBackend } from '../../lib/once/memory/once.memory-backend.js';
import type { ClaimReply, OnceBackend } from '../../lib/once/once.backend.js';
import { onceOn } from '../support/redis-backends.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { freshRedis } from '../support/redis.js';
import { claimOf } from './support.js';

const LEASE_MS = 1_000;
const KEEP_MS = 5_050;
const KEYS = ['a', 'b'];
/** Every time of the model is a multiple of a step, and no end falls on one. */
const STEP_MS = 300;

type Step =
  | { do: 'advance'; steps: number }
  | { do: 'claim'; key: string; print: string; afterCrash: 'run' | 'refuse' }
  | { do: 'renew' | 'kept' | 'failed' | 'nothing'; run: number }
  | { do: 'settle' | 'get'; key: string }
  | { do: 'forget'; key: string; force: boolean };

const key = fc.constantFrom(...KEYS);
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ do: fc.constant('advance' as const), steps: fc.integer({ min: 1, max: 5 }) }),
  {
    weight: 4,
    arbitrary: fc.record({
      ...{ do: fc.constant('claim' as const), key, print: fc.constantFrom('p', 'q') },
      afterCrash: fc.constantFrom('run' as const, 'refuse' as const),
    }),
  },
  {
    weight: 4,
    arbitrary: fc.record({
      do: fc.constantFrom('renew' as const, 'kept' as const, 'failed' as const, 'nothing' as const),
      run: fc.nat(3),
    }),
  },
  fc.record({ do: fc.constantFrom('settle' as const, 'get' as const), key }),
  fc.record({ do: fc.constant('forget' as const), key, force: fc.boolean() }),
);

interface Known {
  state: 'running' | 'done' | 'failed';
  run: number;
  attempt: number;
  untilMs: number;
  endsMs: number;
  result: string;
  readonly print: string;
  readonly afterCrash: 'run' | 'refuse';
}

/** The behaviour of a key in a few lines: it knows no nonces, no records and no TTLs. */
class Model {
  nowMs = 0;
  readonly #known = new Map<string, Known>();
  readonly #keyOfRun: string[] = [];

  take(given: Step): unknown {
    switch (given.do) {
      case 'advance':
        this.nowMs += given.steps * STEP_MS;
        return undefined;
      case 'claim':
        return this.#claim(given);
      case 'forget': {
        const found = this.#find(given.key);
        if (found && this.#runs(found) && !given.force) return 'running';
        this.#known.delete(given.key);
        return 'ok';
      }
      case 'get': {
        const found = this.#find(given.key);
        if (!found) return null;
        const lapsed = found.afterCrash === 'refuse' ? 'unknown' : 'failed';
        const isLapsed = found.state === 'running' && !this.#runs(found);
        return [isLapsed ? lapsed : found.state, found.attempt];
      }
      case 'settle': {
        const found = this.#find(given.key);
        if (!found) return 'not_found';
        if (found.state === 'done') return 'already_done';
        if (this.#runs(found)) return 'running';
        this.#end(found, 'done', 'by hand');
        return 'ok';
      }
      default:
        return this.#ofRun(given.do, given.run);
    }
  }

  #claim({ key, print, afterCrash }: Step & { do: 'claim' }): unknown {
    const run = this.#keyOfRun.push(key) - 1;
    const found = this.#find(key);
    if (found && found.print !== print) return 'mismatch';
    if (found?.state === 'done') return ['done', found.attempt, found.result];
    if (found && this.#runs(found)) return 'busy';
    if (found?.state === 'running' && found.afterCrash === 'refuse') return 'unknown';
    const untilMs = this.nowMs + LEASE_MS;
    const attempt = (found?.attempt ?? 0) + 1;
    this.#known.set(key, {
      ...{ state: 'running', run, attempt, untilMs, endsMs: untilMs + KEEP_MS, result: '', print },
      afterCrash: found?.afterCrash ?? afterCrash,
    });
    return ['claimed', attempt];
  }

  #ofRun(how: 'renew' | 'kept' | 'failed' | 'nothing', run: number): unknown {
    const key = this.#keyOfRun[run] ?? '';
    const found = this.#find(key);
    const isMine = found?.run === run;
    if (how === 'renew') {
      if (!isMine || found.state !== 'running') return false;
      found.untilMs = Math.max(found.untilMs, this.nowMs + LEASE_MS);
      found.endsMs = found.untilMs + KEEP_MS;
      return true;
    }
    if (!found) return how === 'nothing';
    if (!isMine) return false;
    if (found.state !== 'running') return true;
    if (how === 'nothing' && --found.attempt === 0) this.#known.delete(key);
    else this.#end(found, how === 'kept' ? 'done' : 'failed', how === 'kept' ? `of ${run}` : '');
    return true;
  }

  #end(found: Known, state: 'done' | 'failed', result: string): void {
    Object.assign(found, { state, result, endsMs: this.nowMs + KEEP_MS });
    if (result === 'by hand') found.run = -1;
  }

  #find(key: string): Known | undefined {
    const found = this.#known.get(key);
    return found && this.nowMs < found.endsMs ? found : undefined;
  }

  #runs({ state, untilMs }: Known): boolean {
    return state === 'running' && this.nowMs < untilMs;
  }
}

/** Does the same on a backend. Each claim has a nonce by its number. */
class Real {
  #claims = 0;
  readonly #keyOfRun: string[] = [];
  readonly fences = new Map<string, string>();

  constructor(
    private readonly backend: OnceBackend,
    private readonly prefix: string,
    private readonly advance: (ms: number) => void,
  ) {}

  async take(given: Step): Promise<unknown> {
    const { backend } = this;
    switch (given.do) {
      case 'advance':
        return this.advance(given.steps * STEP_MS);
      case 'claim':
        return this.#claim(given);
      case 'forget': {
        const result = await backend.forget(this.prefix + given.key, given.force, {});
        return result.ok ? 'ok' : result.reason;
      }
      case 'get': {
        const found = await backend.get(this.prefix + given.key, {});
        return found && [found.state, found.attempt];
      }
      case 'settle': {
        const kept = { form: 'value', bytes: Buffer.from('by hand') } as const;
        const result = await backend.settle(
          { key: this.prefix + given.key, nonce: 'hand' + String(Math.random()).slice(2) },
          kept,
          {},
        );
        return result.ok ? 'ok' : result.reason;
      }
      default: {
        const run = { key: this.prefix + (this.#keyOfRun[given.run] ?? ''), nonce: `run-${given.run}` };
        if (given.do === 'renew') return backend.renew(run, LEASE_MS);
        const kept = { form: 'value', bytes: Buffer.from(`of ${given.run}`) } as const;
        return (await backend.end(run, given.do === 'kept' ? { kept } : given.do)) > 0;
      }
    }
  }

  async #claim({ key, print, afterCrash }: Step & { do: 'claim' }): Promise<unknown> {
    this.#keyOfRun.push(key);
    const nonce = `run-${this.#claims++}`;
    const reply: ClaimReply = await this.backend.claim(
      claimOf(this.prefix + key, { nonce, print, afterCrash, leaseMs: LEASE_MS, keepMs: KEEP_MS }),
      {},
    );
    if (reply.status === 'claimed') {
      // A record that is gone leaves no fence, and here the clock may stand still.
      if (reply.attempt > 1) expect(reply.fence > (this.fences.get(key) ?? '')).toBe(true);
      this.fences.set(key, reply.fence);
      return ['claimed', reply.attempt];
    }
    return reply.status === 'done' ? ['done', reply.attempt, reply.kept.bytes.toString()] : reply.status;
  }
}

const STEPS_A_RUN = 40;

/** Random steps on a backend and on a model of it, which must agree. */
export const describeModel = (allSteps: number): void =>
  describe.each(['memory', 'Redis'] as const)('a model of runs, beside %s', (name) => {
    it(`agrees over ${allSteps} steps`, async () => {
      let runs = 0;
      let offsetMs = 0;
      const redis = await freshRedis();
      redis.clock.hold(Date.now());
      const memory = new MemoryOnceBackend({ now: () => 1_796_000_000_000 + offsetMs });
      const onRedis = onceOn(new ScriptRunner(redis.client(), 10_000), 'model');
      const advance = (ms: number): void => {
        offsetMs += ms;
        if (name === 'Redis') redis.clock.advance(ms);
      };
      await fc.assert(
        fc.asyncProperty(
          fc.array(step, { minLength: STEPS_A_RUN, maxLength: STEPS_A_RUN }),
          async (steps) => {
            const model = new Model();
            const real = new Real(name === 'memory' ? memory : onRedis, `${runs++}:`, advance);
            for (const given of steps)
              expect([given, await real.take(given)]).toStrictEqual([given, model.take(given)]);
          },
        ),
        { numRuns: Math.ceil(allSteps / STEPS_A_RUN) },
      );
      redis.clock.reset();
    });
  });
