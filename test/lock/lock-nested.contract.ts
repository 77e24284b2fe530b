import { AsyncLocalStorage } from 'node:async_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { type HttpException, Logger } from '@nestjs/common';
import {
  type LockBackend,
  type LockContext,
  LockError,
  type LockTurn,
  toHttpException,
} from 'nestjs-syncguard';
import { LockService } from '../../lib/lock/lock.service.js';
import { resolveOptions } from '../../lib/module/syncguard.options.js';
import { eventually } from '../support/eventually.js';
import { granted } from './lock.contract.js';
import type { LockQueueUnderTest } from './lock-queue.contract.js';

const [A, B, C] = ['{t}:a', '{t}:b', '{t}:c'] as const;
const PATIENT = { timeoutMs: 20_000 };

/** Runs what is no part of the call around it. */
const outside = AsyncLocalStorage.snapshot();

type Outcome = 'done' | LockError['code'];

const codeOf = (error: unknown): Outcome => {
  if (error instanceof LockError) return error.code;
  throw error;
};

/** Opens when so many have come. */
function gate(count: number): () => Promise<void> {
  let open: () => void;
  const opened = new Promise<void>((resolve) => (open = resolve));
  let arrived = 0;
  return () => {
    if (++arrived === count) open();
    return opened;
  };
}

/** How calls that hold locks wait for others, whatever the backend. */
export function describeNestedLocks(name: string, setUp: () => Promise<LockQueueUnderTest>): void {
  describe(`locks inside locks on ${name}`, () => {
    let backends: LockQueueUnderTest['backends'];
    let leftovers: () => Promise<readonly string[]>;
    let services: LockService[];
    let events: unknown[];
    let errors: jest.SpyInstance;
    const serviceOn = (on: LockBackend, lock = {}): LockService => {
      const service = new LockService(on, {
        ...resolveOptions({ lock }),
        emit: ({ result, reason }) => void (result === 'fail' && events.push(reason)),
      });
      services.push(service);
      return service;
    };
    beforeEach(async () => {
      [services, events] = [[], []];
      ({ backends, leftovers } = await setUp());
      errors = jest.spyOn(Logger.prototype, 'error').mockImplementation();
    });
    afterEach(async () => {
      errors.mockRestore();
      await Promise.all(services.map((service) => service.onModuleDestroy()));
    });

    const nothingIsLeft = (): Promise<unknown> =>
      eventually(async () => expect(await leftovers()).toStrictEqual([]));

    /** Takes each key inside the one before it. */
    const nest = async (
      locks: LockService,
      [key, ...rest]: readonly string[],
      body: (lock?: LockContext) => unknown = () => {},
      options: object = PATIENT,
      meet: () => Promise<unknown> = async () => {},
    ): Promise<unknown> =>
      locks.lock(
        async (lock) => {
          await meet();
          return rest.length === 0 ? body(lock) : nest(locks, rest, body, options);
        },
        { key: key as string, ...PATIENT, ...options },
      );
    const outcome = (call: Promise<unknown>): Promise<Outcome> => call.then((): Outcome => 'done', codeOf);

    describe.each([{ fair: true }, { fair: false, retryDelayMs: 10 }])('in one process, with %p', (how) => {
      it.each([
        [
          'two',
          [
            [A, B],
            [B, A],
          ],
        ],
        [
          'three',
          [
            [A, B],
            [B, C],
            [C, A],
          ],
        ],
      ])('of a circle of %s one is told by its first attempt, and the others are done', async (_, orders) => {
        const calls = new AsyncLocalStorage<{ attempts: number }>();
        const locks = serviceOn(
          noting(backends[0], () => {
            const call = calls.getStore();
            if (call) call.attempts++;
          }),
        );
        const meet = gate(orders.length);
        const outcomes = await Promise.all(
          orders.map((keys) => {
            const call = { attempts: 0 };
            return calls.run(call, async () => {
              const ended = await outcome(nest(locks, keys, () => nextTurn(), { ...PATIENT, ...how }, meet));
              if (ended === 'Deadlock') expect(call.attempts).toBe(2); // For the outer lock, and for the inner one.
              return ended;
            });
          }),
        );
        expect(outcomes.sort()).toEqual(['Deadlock', ...orders.slice(1).map(() => 'done')]);
        await nothingIsLeft();
      });

      it('of 20 calls in opposite order nobody times out, and who tries again is done', async () => {
        const locks = serviceOn(backends[0]);
        let inside = 0;
        const body = async (): Promise<void> => {
          expect(++inside).toBe(1);
          await nextTurn();
          inside--;
        };
        const options = { ...how, timeoutMs: 55_000 };
        let refused = 0;
        const untilDone = async (keys: readonly string[]): Promise<void> => {
          for (;;) {
            const ended = await outcome(nest(locks, keys, body, options));
            if (ended === 'done') return;
            expect(ended).toBe('Deadlock');
            refused++;
          }
        };
        await Promise.all(Array.from({ length: 20 }, (_, i) => untilDone(i % 2 ? [A, B] : [B, A])));
        expect(events.filter((reason) => reason === 'deadlock')).toHaveLength(refused);
        await nothingIsLeft();
      });
    });

    it('a deadlock is a 423 that may be tried again, and one line a minute in the log', async () => {
      const locks = serviceOn(backends[0]);
      for (let i = 0; i < 2; i++) {
        const meet = gate(2);
        const ends = await Promise.allSettled([
          nest(locks, [A, B], undefined, PATIENT, meet),
          nest(locks, [B, A], undefined, PATIENT, meet),
        ]);
        const [error] = ends.flatMap((end) => (end.status === 'rejected' ? [end.reason as LockError] : []));
        expect(error).toMatchObject({
          code: 'Deadlock',
          context: { heldKeyHashes: [expect.any(String)], retryAfter: 1 },
        });
        expect(error?.message).toMatch(/same order/);
        const refused = toHttpException(error) as HttpException;
        expect(refused.getStatus()).toBe(423);
        expect(refused.getResponse()).toMatchObject({ code: 'Deadlock', context: { retryAfter: 1 } });
        expect(JSON.stringify(refused.getResponse())).not.toMatch(/Hash|\{t\}/);
      }
      expect(errors.mock.calls).toEqual([
        [expect.stringMatching(/^LOCK_DEADLOCK: .*same order/), expect.stringContaining('nest')],
      ]);
    });

    it('several keys at once are part of a circle', async () => {
      const locks = serviceOn(backends[0]);
      const meet = gate(2);
      const ends = await Promise.all([
        outcome(locks.lock(async () => meet().then(() => nest(locks, [C])), { keys: [A, B], ...PATIENT })),
        outcome(
          locks.lock(async () => meet().then(() => locks.lock(() => {}, { keys: [A, B], ...PATIENT })), {
            key: C,
            ...PATIENT,
          }),
        ),
      ]);
      expect(ends.sort()).toEqual(['Deadlock', 'done']);
      await nothingIsLeft();
    });

    it('a circle through two modules of one process is seen', async () => {
      const other = (await setUp()).backends[0];
      const [one, two] = [serviceOn(backends[0]), serviceOn(other)];
      const meet = gate(2);
      const ends = await Promise.all([
        outcome(one.lock(async () => meet().then(() => nest(two, [B])), { key: A, ...PATIENT })),
        outcome(two.lock(async () => meet().then(() => nest(one, [A])), { key: B, ...PATIENT })),
      ]);
      expect(ends.sort()).toEqual(['Deadlock', 'done']);
    });

    it.each([
      ['skips', { onContention: 'skip' as const }, 'done'],
      ['tries once', { timeoutMs: 0 }, 'AcquisitionTimeout'],
    ])('who %s waits for nobody, so it is no deadlock', async (_, options, ended) => {
      const locks = serviceOn(backends[0]);
      let waiting: Promise<Outcome> | undefined;
      await nest(locks, [A], async () => {
        waiting = outside(() => outcome(nest(locks, [B, A])));
        await eventually(async () => expect(await backends[0].isLocked({ key: B })).toBe(true));
        expect(await outcome(nest(locks, [B], undefined, options))).toBe(ended);
      });
      expect(await waiting).toBe('done');
    });

    it('a lock that was lost closes no circle', async () => {
      const places: number[] = [];
      const locks = serviceOn(withPlaces(backends[0], places));
      const meet = gate(2);
      const lost = outcome(
        locks.lock(
          async ({ lockId }) => {
            await meet();
            locks.lose(lockId);
            // Another owner has the lock, and gives it back when both calls wait.
            void eventually(() => expect(places).toHaveLength(2)).then(() => backends[0].release({ lockId }));
            return nest(locks, [B]);
          },
          { key: A, ...PATIENT },
        ),
      );
      const other = outcome(nest(locks, [B, A], undefined, PATIENT, meet));
      expect(await Promise.all([lost, other])).toEqual(['LockLost', 'done']);
      await nothingIsLeft();
    });

    it('a wait ends when a lock around it is lost, and leaves the queue', async () => {
      const places: number[] = [];
      const locks = serviceOn(withPlaces(backends[0], places));
      const held = granted(await backends[1].acquire({ key: B, ttlMs: 60_000 }));
      let loss: unknown;
      const nested = locks.lock(
        async ({ signal }) => {
          signal.addEventListener('abort', () => (loss = signal.reason as unknown));
          return locks.lock(() => nest(locks, [B]), { key: C });
        },
        { key: A, ttlMs: 500, autoExtend: false },
      );
      await expect(nested).rejects.toMatchObject({ code: 'LockLost', context: { reason: 'expired' } });
      await expect(nested).rejects.toBe(loss);
      expect(places).toHaveLength(1);
      expect(events).toEqual(['lost', 'aborted']);
      await held.release(); // Nobody gets it.
      await nothingIsLeft();
    });

    it('under `reentrant` the outer lock is held', async () => {
      const locks = serviceOn(backends[0]);
      const meet = gate(2);
      const reentrant = { ...PATIENT, reentrant: true };
      const ends = await Promise.all([
        outcome(nest(locks, [A, A, B], undefined, reentrant, meet)),
        outcome(nest(locks, [B, A], undefined, reentrant, meet)),
      ]);
      expect(ends.sort()).toEqual(['Deadlock', 'done']);
      await nothingIsLeft();
    });

    it('calls side by side in one body wait for each other without a deadlock', async () => {
      const locks = serviceOn(backends[0]);
      const ends = await nest(locks, [A], () =>
        Promise.all([outcome(nest(locks, [B, C])), outcome(nest(locks, [B])), outcome(nest(locks, [C]))]),
      );
      expect(ends).toEqual(['done', 'done', 'done']);
      await nothingIsLeft();
    });

    it('a call that holds a lock goes before those that hold none, which get every second turn', async () => {
      const locks = serviceOn(backends[0]);
      const order: string[] = [];
      const waiters: Promise<unknown>[] = [];
      const waiting = async (name: string, outer?: string): Promise<void> => {
        const places: number[] = [];
        const service = serviceOn(withPlaces(backends[waiters.length % 2] as LockBackend, places));
        const keys = outer === undefined ? [A] : [outer, A];
        waiters.push(nest(service, keys, () => void order.push(name)));
        await eventually(() => expect(places).toHaveLength(1));
      };
      await nest(locks, [A], async () => {
        for (const name of ['p1', 'p2', 'p3']) await outside(() => waiting(name));
        for (const name of ['n1', 'n2', 'n3', 'n4']) await outside(() => waiting(name, `{t}:${name}`));
      });
      await Promise.all(waiters);
      expect(order).toEqual(['n1', 'p1', 'n2', 'p2', 'n3', 'p3', 'n4']);
      await nothingIsLeft();
    });

    it('a plain caller among nine nested of ten waits for twice its queue at most', async () => {
      let handOvers = 0;
      let stop = false;
      const count = 20;
      const workers = Array.from({ length: count }, async (_, i) => {
        const locks = serviceOn(backends[i % 2] as LockBackend);
        while (!stop)
          await nest(locks, i % 10 ? [`{t}:own:${i}`, A] : [A], async () => {
            handOvers++;
            await nextTurn();
          });
      });
      await eventually(() => expect(handOvers).toBeGreaterThan(2 * count));
      const worst: number[] = [];
      for (let i = 0; i < 10; i++) {
        let [place, before] = [0, 0];
        const places: number[] = [];
        const plain = serviceOn(
          withPlaces(backends[i % 2] as LockBackend, places, (at) => ([place, before] = [at, handOvers])),
        );
        await plain.lock(() => {}, { key: A, ...PATIENT });
        worst.push((handOvers - before) / Math.max(place, 1));
      }
      stop = true;
      await Promise.all(workers);
      // One more, of the holder that was inside when it came.
      for (const times of worst) expect(times).toBeLessThanOrEqual(3);
      expect(worst.reduce((sum, times) => sum + times, 0) / worst.length).toBeLessThanOrEqual(2);
      await nothingIsLeft();
    });

    it('keys that were claimed for several are left to a call that holds a lock', async () => {
      const take = async (key: string, turn?: LockTurn) =>
        backends[1].acquire({ key, ttlMs: 60_000, ...(turn ? { turn } : {}) });
      const c = granted(await take(C));
      const several = backends[0].takeTurn?.({ pollMs: 60_000 });
      const tryBoth = async (): Promise<void> => {
        const { ok } = await backends[0].acquire({ keys: [B, C], ttlMs: 60_000, turn: several });
        expect(ok).toBe(false);
      };
      // It is handed B four times in vain, and keeps it the fifth time.
      for (let i = 0; i < 5; i++) {
        const b = granted(await take(B));
        await tryBoth();
        await b.release();
        await tryBoth();
      }
      const holder = backends[1].takeTurn?.({ pollMs: 60_000, isNested: true });
      expect((await take(B, holder)).ok).toBe(false);
      await tryBoth();
      const b = granted(await take(B, holder));
      several?.leave();
      for (const lock of [b, c]) await lock.release();
      await nothingIsLeft();
    });

    it('a nested wait takes between half of its time and all of it, so that one side of a circle gives up first', async () => {
      const held = await backends[0].acquire({ key: B, ttlMs: 30_000 });
      const locks = serviceOn(backends[1]);
      const waits = await Promise.all(
        Array.from({ length: 12 }, async (_, i) => {
          const startMs = performance.now();
          const options = { timeoutMs: 400 };
          expect(await outcome(nest(locks, [`{t}:${i}`, B], undefined, options))).toBe('AcquisitionTimeout');
          return performance.now() - startMs;
        }),
      );
      expect(Math.min(...waits)).toBeGreaterThanOrEqual(199);
      expect(Math.max(...waits) - Math.min(...waits)).toBeGreaterThan(40);
      const startMs = performance.now();
      expect(await outcome(nest(locks, [B], undefined, { timeoutMs: 400 }))).toBe('AcquisitionTimeout');
      expect(performance.now() - startMs).toBeGreaterThanOrEqual(399);
      await (held as { release(): Promise<unknown> }).release();
    });
  });
}

/** Tells of each attempt when it was answered. */
const noting = (on: LockBackend, answered: (turn: LockTurn | undefined) => void): LockBackend =>
  new Proxy(on, {
    get: (target, member: keyof LockBackend) => {
      const value: unknown = target[member];
      if (member !== 'acquire') return typeof value === 'function' ? (value.bind(target) as unknown) : value;
      return async (options: Parameters<LockBackend['acquire']>[0]) => {
        const result = await target.acquire(options);
        answered(options.turn);
        return result;
      };
    },
  });

/** Notes the place of every turn as soon as it has one. */
function withPlaces(
  on: LockBackend,
  places: number[],
  noted: (place: number) => unknown = () => {},
): LockBackend {
  const seen = new WeakSet<object>();
  return noting(on, (turn) => {
    if (turn?.place === undefined || seen.has(turn)) return;
    seen.add(turn);
    places.push(turn.place);
    noted(turn.place);
  });
}
