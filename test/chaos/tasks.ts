import { randomUUID } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';
import type { INestApplicationContext } from '@nestjs/common';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  type LockContext,
  LockService,
  OnceService,
  SecretService,
} from '../../lib/index.js';
import { type Completion, type HistoryEvent, type Invocation, nowMs } from './history.js';
import { OnceTasks } from './once-tasks.js';
import { Random } from './random.js';
import { AUDIT_AFTER_MS, BUDGET, COUNTER_MAX, EPOCH_MS, HOLD_TTL_MS, LOCK, VIEWS } from './settings.js';
import type { WorkerArguments } from './worker-arguments.js';

type Write = (event: HistoryEvent) => void;
type Subject = Pick<Invocation, 'op' | 'on' | 'id' | 'amount' | 'payload'>;

/** Of a worker that does nothing else. */
const ONCE_CALLERS = 12;
/** How often what failed is asked for again. */
const TRIES = 4;
/** How often a budget is looked at in which something is reserved still. */
const TRIES_OF_AUDIT = 100;
/** How long a lock is given back: a fault is over by then. */
const RELEASE_MS = 15_000;

class Tasks {
  #stopped = false;
  #calls = 0;
  readonly #loops: Promise<void>[] = [];
  readonly #locks: LockService;
  readonly #budgets: BudgetService;
  readonly #limiter: AbuseLimiterService;
  readonly #counters: CounterService;
  readonly #secrets: SecretService;
  readonly #once: OnceTasks;

  constructor(
    app: INestApplicationContext,
    private readonly given: WorkerArguments,
    private readonly write: Write,
  ) {
    this.#locks = app.get(LockService);
    this.#budgets = app.get(BudgetService);
    this.#limiter = app.get(AbuseLimiterService);
    this.#counters = app.get(CounterService);
    this.#secrets = app.get(SecretService);
    this.#once = new OnceTasks(app.get(OnceService), given.worker, given.startMs, write);
  }

  start(): void {
    const work = [this.lock, this.lock, this.lock, this.hold, this.budget, this.budget, this.budget];
    const all = [...work, this.view, this.view, this.limit, this.limit, this.count, this.once, this.once];
    const tasks = this.given.onlyOnce ? Array<Tasks['once']>(ONCE_CALLERS).fill(this.once) : all;
    tasks.forEach((task, i) => this.#loops.push(this.#repeat(task.bind(this), i)));
    if (this.given.first) this.#loops.push(this.#keepEpochs());
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    await Promise.all(this.#loops);
  }

  async lock(random: Random): Promise<void> {
    const on = `shared ${random.between(0, 2)}`;
    const bodyMs = random.chance(0.03)
      ? random.between(LOCK.ttlMs, LOCK.longestBodyMs)
      : random.between(0, 20);
    await this.#call({ op: 'lock', on }, async (n) => {
      await this.#locks.lock((lock) => this.#body(lock, n, on, bodyMs), {
        key: on,
        ttlMs: LOCK.ttlMs,
        timeoutMs: LOCK.timeoutMs,
      });
      return true;
    });
  }

  /** As long as the lock says that it is held; and says until when that was. */
  async #body(lock: LockContext, n: number, on: string, bodyMs: number): Promise<void> {
    const { worker } = this.given;
    const fromMs = nowMs();
    let heldUntilMs = fromMs;
    this.write({ type: 'entered', worker, n, on, fence: lock.fence, lockId: lock.lockId, atMs: fromMs });
    try {
      do {
        const atMs = nowMs();
        lock.assertHeld();
        heldUntilMs = atMs;
        await sleep(3);
      } while (nowMs() < fromMs + bodyMs);
    } finally {
      this.write({ type: 'left', worker, n, heldUntilMs });
    }
  }

  /** A lock that nobody else asks for, with a long life: an undo that is left out leaves it standing. */
  async hold(random: Random): Promise<void> {
    const on = `own ${this.given.worker} ${random.between(0, 5)}`;
    const lock = await this.#call({ op: 'hold', on }, async () => {
      const result = await this.#locks.acquire({ key: on, ttlMs: HOLD_TTL_MS });
      return result.ok && result;
    });
    if (!lock) return;
    await random.pause(0, 10);
    for (const endMs = nowMs() + RELEASE_MS; nowMs() < endMs;)
      if ((await this.#call({ op: 'release', on }, async () => (await lock.release()).ok)) !== undefined)
        return;
  }

  async budget(random: Random): Promise<void> {
    const root = this.#named('root', random.between(0, 1));
    const id = randomUUID();
    const amount = random.between(1, 9);
    const ref = { root, id };
    const reserved = await this.#call(
      { op: 'reserve', on: root, id, amount },
      async () => (await this.#budgets.reserve({ ...ref, scopes: ['user'], amount, ttlMs: BUDGET.ttlMs })).ok,
    );
    if (!reserved) return;
    await random.pause(0, 40);
    if (random.chance(0.05)) return; // its hold expires
    const actual = random.between(0, amount);
    const settle = random.chance(0.3)
      ? () => this.#call({ op: 'abort', on: root, id }, async () => (await this.#budgets.abort(ref)).ok)
      : () =>
          this.#call(
            { op: 'finalize', on: root, id, amount: actual },
            async () => (await this.#budgets.finalize(ref, actual, { late: 'reject' })).ok,
          );
    for (let i = 0; i < TRIES; i++) if ((await settle()) !== undefined) return;
  }

  async view(random: Random): Promise<void> {
    const on = this.#named('secret', random.between(0, 1));
    const id = randomUUID();
    for (let i = 0; i < TRIES; i++) {
      const shown = await this.#call(
        { op: 'view', on, id },
        async () => (await this.#secrets.view(on, { viewId: id })).ok,
      );
      if (shown !== undefined) break;
    }
    await random.pause(100, 300);
  }

  async limit(random: Random): Promise<void> {
    const on = `caller ${random.between(0, 2)}`;
    await this.#call({ op: 'check', on }, async () => (await this.#limiter.check(on, 'api')).allowed);
    await random.pause(5, 30);
  }

  async count(random: Random): Promise<void> {
    const on = this.#named('counter', random.between(0, 1));
    const id = randomUUID();
    for (let i = 0; i < TRIES; i++) {
      const counted = await this.#call(
        { op: 'increment', on, id },
        async () => (await this.#counters.increment(on, { max: COUNTER_MAX, windowMs: 3_600_000, id })).ok,
      );
      if (counted !== undefined) break;
    }
    await random.pause(20, 100);
  }

  async once(random: Random): Promise<void> {
    const { on, payload, run } = this.#once.next(random);
    await this.#call({ op: 'once', on, payload }, run, (answer) => ({ answer }));
  }

  /** Writes a call down before and after. Undefined: it failed, and may have happened. */
  async #call<T>(
    subject: Subject,
    run: (n: number) => Promise<T>,
    tell: (result: T) => Partial<Completion> = () => ({}),
  ): Promise<T | undefined> {
    const { worker } = this.given;
    const n = this.#calls++;
    this.write({ type: 'call', worker, n, ...subject, atMs: nowMs() });
    try {
      const result = await run(n);
      this.write({ type: 'done', worker, n, atMs: nowMs(), ok: Boolean(result), ...tell(result) });
      return result;
    } catch (error) {
      const { code, name } = error as { code?: string; name: string };
      this.write({ type: 'done', worker, n, atMs: nowMs(), error: code ?? name });
      await sleep(20);
      return undefined;
    }
  }

  async #repeat(task: (random: Random) => Promise<void>, i: number): Promise<void> {
    const random = new Random(this.given.seed * 1_000 + this.given.worker * 50 + i);
    while (!this.#stopped) {
      await task(random);
      await random.pause(0, 4);
    }
  }

  #named(kind: string, i: number, epoch = Math.floor((nowMs() - this.given.startMs) / EPOCH_MS)): string {
    return `${kind} ${i} of ${epoch}`;
  }

  /** Makes the secrets of each epoch, and audits it when all of it is over, as those that a worker before this one has left. */
  async #keepEpochs(): Promise<void> {
    const next = Math.ceil((nowMs() - this.given.startMs) / EPOCH_MS);
    const left = Math.max(0, next - Math.ceil((EPOCH_MS + AUDIT_AFTER_MS) / EPOCH_MS));
    const audits: Promise<void>[] = [];
    for (let epoch = left; !this.#stopped; epoch++) {
      const beginsMs = this.given.startMs + epoch * EPOCH_MS;
      const isOurs = epoch >= next;
      await this.#until(beginsMs);
      if (this.#stopped) break;
      if (isOurs) await Promise.all([0, 1].map((i) => this.#createSecret(this.#named('secret', i, epoch))));
      const isOver = this.#until(beginsMs + EPOCH_MS + AUDIT_AFTER_MS);
      audits.push(isOver.then(() => this.#audit(epoch, isOurs)));
    }
    await Promise.all(audits);
  }

  async #until(atMs: number): Promise<void> {
    while (!this.#stopped && nowMs() < atMs) await sleep(Math.min(100, atMs - nowMs()));
  }

  /** Once: one that fails may be there for a while, until it is withdrawn, and a second would be another secret. */
  async #createSecret(on: string): Promise<void> {
    await this.#call({ op: 'create', on }, async () => {
      await this.#secrets.create({ id: on, payload: on, views: VIEWS, ttlMs: 600_000 });
      return true;
    });
  }

  /** Tries for a while. */
  async #persistently<T>(run: () => Promise<T>): Promise<T | undefined> {
    for (let i = 0; i < 50; i++) {
      try {
        return await run();
      } catch {
        await sleep(100);
      }
    }
    return undefined;
  }

  /** A reserve that a fault held up has run late: its hold is waited for. */
  async #auditBudget(root: string): Promise<void> {
    for (let i = 1; i <= TRIES_OF_AUDIT; i++) {
      const budget = await this.#persistently(async () => {
        const [balance] = await this.#budgets.balance({ root, scope: 'user' });
        const { ok, problems } = await this.#budgets.verify(root);
        return { balance, problems: ok ? [] : problems.map((problem) => JSON.stringify(problem)) };
      });
      if (!budget) return;
      const used = Number(budget.balance?.committed);
      const reserved = Number(budget.balance?.reserved);
      if (reserved === 0 || i === TRIES_OF_AUDIT)
        return this.write({
          ...{ type: 'audit', op: 'budget', on: root, atMs: nowMs() },
          ...{ used, reserved, problems: budget.problems },
        });
      await sleep(100);
    }
  }

  /** @param hasSecrets - whether its secrets were made, which of another worker's nobody knows */
  async #audit(epoch: number, hasSecrets: boolean): Promise<void> {
    if (this.#stopped) return;
    for (const i of [0, 1]) {
      const names = [
        this.#named('root', i, epoch),
        this.#named('secret', i, epoch),
        this.#named('counter', i, epoch),
      ];
      const [root, secret, counter] = names as [string, string, string];
      await this.#auditBudget(root);
      const peeked = hasSecrets && (await this.#persistently(() => this.#secrets.peek(secret)));
      if (peeked)
        this.write({
          ...{ type: 'audit', op: 'secret', on: secret, atMs: nowMs() },
          used: peeked.ok ? VIEWS - Number(peeked.viewsRemaining) : VIEWS,
        });
      const counted = await this.#persistently(() => this.#counters.peek(counter));
      if (counted)
        this.write({ type: 'audit', op: 'counter', on: counter, atMs: nowMs(), used: counted.count });
    }
  }
}

/** Starts everything that a worker does over and over. */
export function startTasks(app: INestApplicationContext, given: WorkerArguments, write: Write): Tasks {
  const tasks = new Tasks(app, given, write);
  tasks.start();
  return tasks;
}
