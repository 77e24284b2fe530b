import 'reflect-metadata';
import { BudgetService, type SyncGuardEvent, SyncGuardModule } from 'nestjs-syncguard';
import { eventually } from '../support/eventually.js';
import { CELLS, REQUEST_SCOPED, type RunningApp, UNANSWERED } from './contexts.js';
import { type JobName, TEAM, Work } from './jobs.js';

const LIMITS = [{ scope: TEAM, period: 'lifetime' as const, limit: 100 }];

describe.each([...CELLS, ...REQUEST_SCOPED])(
  '$context · $adapter',
  ({ start, key, limited, silent, refused }) => {
    const events: SyncGuardEvent[] = [];
    let running: RunningApp;
    let work: Work;
    let budgets: BudgetService;

    beforeAll(async () => {
      running = await start([
        SyncGuardModule.forRoot({
          lock: { retryDelayMs: 5 },
          budget: { limits: LIMITS },
          telemetry: { onEvent: (event) => void events.push(event) },
        }),
      ]);
      running.app.useLogger(false); // Where nobody is answered Nest logs the refusals.
      work = running.app.get(Work);
      budgets = running.app.get(BudgetService);
    });
    afterAll(() => running.close());
    beforeEach(() => {
      work.most = 0;
      work.done.length = events.length = 0;
      for (const asked of Object.values(work.asked)) asked.clear();
    });

    /** How often an operation came out like that, so far. */
    const times = (expected: Partial<SyncGuardEvent>): number =>
      events.filter((event) =>
        Object.entries(expected).every(([name, value]) => event[name as keyof SyncGuardEvent] === value),
      ).length;

    const expectBeside = (...jobs: JobName[]): void => {
      const asked = new Set(limited === 'no' ? [] : jobs);
      expect(work.asked).toEqual({ guard: asked, interceptor: asked });
    };

    const spent = async (): Promise<{ committed: number; reserved: number }> => {
      const [balance] = await budgets.balance({ scope: TEAM });
      return { committed: Number(balance?.committed), reserved: Number(balance?.reserved) };
    };

    describe.each(['lockAbove', 'lockBelow'] as const)('@WithLock: %s', (job) => {
      it('lets one call in at a time, with rising fences, and refuses who cannot wait', async () => {
        const letOut = work.keepInside();
        const first = running.call(job);
        await eventually(() => expect(work.inside).toBe(1));
        const second = running.call(job);
        await eventually(() => expect(times({ type: 'acquire', reason: 'locked' })).toBeGreaterThan(0));
        expect(await running.call('tryLock')).toEqual(
          refused({
            statusCode: 423,
            code: 'AcquisitionTimeout',
            message: expect.stringMatching(/^Somebody else holds the lock/),
            context: {
              timeoutMs: 0,
              retryAfter: expect.any(Number) as unknown,
              retryAtMs: expect.any(Number) as unknown,
            },
          }),
        );
        await eventually(() => expect(times({ type: 'lock', reason: 'timeout' })).toBe(1));

        letOut();
        await eventually(() => expect(work.done).toHaveLength(2));
        expect(work.most).toBe(1);
        expect(work.done.map((done) => done.key)).toEqual([key, key]);
        const [one = '', other = ''] = work.done.map(({ fence }) => fence);
        expect(other > one).toBe(true);
        const answered = silent ? [undefined, undefined] : [{ answer: one }, { answer: other }];
        expect([await first, await second]).toEqual(answered);
        expectBeside(job, 'tryLock');
      });
    });

    describe.each(['budgetAbove', 'budgetBelow'] as const)('@WithBudget: %s', (job) => {
      it('reserves before, refuses what has no room, and settles once', async () => {
        const before = await spent();
        const letOut = work.keepInside();
        const first = running.call(job);
        await eventually(() => expect(work.inside).toBe(1));
        expect(await spent()).toEqual({ committed: before.committed, reserved: 60 });
        expect(await running.call(job)).toEqual(
          refused({
            statusCode: 429,
            code: 'BudgetExceeded',
            message: expect.stringMatching(/^The request exceeds the budget/),
            context: {
              retryAfter: 1,
              retryAtMs: expect.any(Number) as unknown,
              violations: [expect.objectContaining({ scope: TEAM, requested: 60 })],
            },
          }),
        );
        await eventually(() => expect(times({ type: 'reserve', result: 'fail' })).toBe(1));

        letOut();
        await first;
        await eventually(() => expect(times({ type: 'finalize' })).toBe(1));
        expect(await spent()).toEqual({ committed: before.committed + 7, reserved: 0 });
        expect(times({ type: 'abort' })).toBe(0);
        expect([work.most, work.done.length]).toEqual([1, 1]);
        expectBeside(job);
      });
    });

    describe.each(['limitAbove', 'limitBelow'] as const)('@RateLimit: %s', (job) => {
      if (limited === 'no')
        it('does not apply: Nest asks no guards here', async () => {
          for (let i = 0; i < 3; i++) await running.call(job);
          await eventually(() => expect(work.done).toHaveLength(3));
        });
      else
        it('denies the third call of two, which does not run', async () => {
          for (let i = 0; i < 2; i++) await running.call(job);
          await eventually(() => expect(work.done).toHaveLength(2));
          const denied = {
            statusCode: 429,
            code: 'RateLimited',
            message: expect.stringMatching(/^Too many attempts/) as unknown,
            context: { retryAfter: expect.any(Number) as unknown, retryAtMs: expect.any(Number) as unknown },
          };
          const answer = running.call(job);
          if (limited !== UNANSWERED) expect(await answer).toEqual(refused(denied));
          await eventually(() => expect(times({ type: 'check', result: 'fail' })).toBe(1));
          expect(work.done).toHaveLength(2);
        });
    });
  },
);
