import { type Job, Queue } from 'bullmq';
import { BudgetService } from 'nestjs-syncguard';
import { eventually } from '../../support/eventually.js';
import { stage } from './instances.js';
import type { Ask } from './job-queue/completions.js';
import { startToKill } from './processes.js';

describe('docs/guides/job-queue.md', () => {
  const on = stage();
  let queue: Queue<Ask>;
  afterEach(() => queue?.close());

  const open = async () => {
    const { CompletionsModule, Llm } = await import('./job-queue/completions.js');
    const asked: Ask[] = [];
    let failures = 0;
    let slow: Promise<void> | undefined;
    const complete = async (ask: Ask) => {
      asked.push(ask);
      if (failures-- > 0) throw new Error('the provider is away');
      if (ask.prompt !== 'slow') return { text: `You said: ${ask.prompt}`, tokens: ask.maxTokens };
      await slow;
      return { text: 'Not much.', tokens: 1 };
    };
    const start = () =>
      on.start(CompletionsModule, (builder) => builder.overrideProvider(Llm).useValue({ complete }));
    const { app } = await start();
    await start();
    queue = new Queue('answers', { connection: { url: on.redis.url } });
    const balance = async (user: string) =>
      (await app.get(BudgetService).balance({ scope: `user:${user}` }))[0];
    const committed = async (user: string) => (await balance(user))?.committed;
    const until = (job: Job<Ask>, state: string) =>
      eventually(async () => expect(await job.getState()).toBe(state));
    const fail = (times: number) => void (failures = times);
    const answerAt = (promise: Promise<void>) => void (slow = promise);
    return { start, asked, balance, committed, until, fail, answerAt };
  };

  it('a job beyond the budget waits for the next month, and that of another user goes on', async () => {
    const { asked, committed, until } = await open();
    const first = await queue.add('ask', { user: 'ada', prompt: 'one', maxTokens: 700 });
    await until(first, 'completed');
    const second = await queue.add('ask', { user: 'ada', prompt: 'two', maxTokens: 700 });
    const third = await queue.add('ask', { user: 'bob', prompt: 'three', maxTokens: 700 });
    const never = await queue.add('ask', { user: 'ada', prompt: 'four', maxTokens: 7_000 }, { attempts: 3 });
    await until(second, 'delayed');
    await until(third, 'completed');
    await until(never, 'failed');
    expect(asked.map(({ prompt }) => prompt)).toEqual(['one', 'three']);
    expect([await committed('ada'), await committed('bob')]).toEqual([700, 700]);
    const now = new Date();
    const nextMonth = Date.UTC(now.getUTCFullYear(), now.getUTCMonth() + 1);
    const waiting = (await queue.getJob(second.id as string)) as Job;
    expect(Math.abs(waiting.timestamp + waiting.delay - nextMonth)).toBeLessThan(60_000);
    expect((await queue.getJob(never.id as string))?.attemptsMade).toBe(1);
  });

  it('a job that has no room only because another still runs is asked again after a second', async () => {
    const { asked, committed, until, answerAt } = await open();
    let finish = (): void => {};
    answerAt(new Promise((resolve) => (finish = resolve)));
    const first = await queue.add('ask', { user: 'ada', prompt: 'slow', maxTokens: 700 });
    await eventually(() => expect(asked).toHaveLength(1));
    const second = await queue.add('ask', { user: 'ada', prompt: 'two', maxTokens: 700 });
    await until(second, 'delayed');
    finish();
    await until(first, 'completed');
    await until(second, 'completed');
    expect(await committed('ada')).toBe(701);
  });

  it('a job whose provider failed is tried again, and paid once', async () => {
    const { asked, committed, until, fail } = await open();
    fail(2);
    const job = await queue.add('ask', { user: 'ada', prompt: 'one', maxTokens: 100 }, { attempts: 3 });
    await until(job, 'completed');
    expect(asked).toHaveLength(3);
    expect(await committed('ada')).toBe(100);
  });

  it('a job that was paid for before its worker died is not paid again', async () => {
    const { asked, committed, until } = await open();
    await queue.pause();
    const job = await queue.add('ask', { user: 'ada', prompt: 'one', maxTokens: 100 });
    const { app } = await on.start((await import('./job-queue/completions.js')).CompletionsModule);
    const run = { id: `answers:${job.id}`, scopes: ['user:ada'], amount: 100 };
    await app.get(BudgetService).run(() => 'the result that was lost', run);
    await queue.resume();
    await until(job, 'failed');
    expect(asked).toEqual([]);
    expect(await committed('ada')).toBe(100);
  });

  it('a job whose worker was killed in it waits until its hold has ended, and is paid once', async () => {
    queue = new Queue('answers', { connection: { url: on.redis.url } });
    const { id = '' } = await queue.add('ask', { user: 'ada', prompt: 'one', maxTokens: 700 });
    const kill = await startToKill('job-queue', on.redis.url);
    await kill();
    await queue.close();
    on.redis.clock.advance(31_000); // The dead worker's claim on the job is over.
    const { start, asked, balance, until } = await open();
    const job = (await queue.getJob(id)) as Job<Ask>;
    expect(await balance('ada')).toMatchObject({ committed: 0, reserved: 700 });

    // BullMQ gives the job to another when two of its rounds have found no claim: here, before the hold has ended.
    await on.redis.client().del('bull:answers:stalled-check');
    await start();
    await until(job, 'delayed');
    expect(asked).toEqual([]);
    expect(await balance('ada')).toMatchObject({ committed: 0, reserved: 700 });

    on.redis.clock.advance(31_000);
    expect(await balance('ada')).toMatchObject({ committed: 0, reserved: 0 });
    await job.promote(); // BullMQ does so by the clock of this machine.
    await until(job, 'completed');
    expect(asked).toHaveLength(1);
    expect(await balance('ada')).toMatchObject({ committed: 700, reserved: 0 });
  });
});
