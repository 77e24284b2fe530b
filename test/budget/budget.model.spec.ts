import { type HttpException, Logger } from '@nestjs/common';
import fc from 'fast-check';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { periodKey, parsePeriodKey } from '../../lib/budget/budget.calendar.js';
import type { BudgetBackend } from '../../lib/budget/budget.backend.js';
import { MemoryBudgetBackend } from '../../lib/budget/memory/budget.memory-backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { RedisBudgetBackend } from '../../lib/budget/redis/budget.redis-backend.js';
import { BudgetConflictError, BudgetExceededError } from '../../lib/budget/budget.errors.js';
import type { CurrentHold } from '../../lib/budget/current-hold.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import { toHttpException } from '../../lib/transport/syncguard-exception.filter.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import {
  type BodyEnd,
  BudgetModel,
  ID_TTL_MS,
  type ModelLimit,
  type PeriodName,
  RETENTION_MS,
  TICK_MS,
  ttlMsOf,
} from './budget.model.js';

/** A long run: SYNCGUARD_MODEL_STEPS=100000. */
const STEPS = Number(process.env.SYNCGUARD_MODEL_STEPS ?? 20_000);
/** The time limit allows for other programs on this machine. */
const TIMEOUT_MS = 60_000 + 10 * STEPS;
const STEPS_A_RUN = 1_000;
/** The calls are sent together, and their answers are compared afterwards. */
const IN_FLIGHT = 50;

const SCOPES = ['user:1', 'user:2', 'team:1', 'org'];

/** Small amounts, and the same times 2^36, whose sums have up to 16 digits. */
const limitsAt = (scale: number): ModelLimit[] => [
  { scope: 'user', period: 'lifetime', limit: 5_000 * scale, thresholds: [] },
  { scope: 'user', period: 'hour', limit: 60 * scale, thresholds: [50, 100] },
  { scope: 'user:2', period: 'hour', limit: 90 * scale, thresholds: [] },
  { scope: 'team', period: 'day@America/New_York', limit: 100 * scale, thresholds: [80, 120] },
  { scope: 'org', period: 'lifetime', limit: 'unlimited', thresholds: [] },
  { scope: 'org', period: 'window:14400000', limit: 120 * scale, thresholds: [100] },
];

interface Real {
  readonly clients: readonly BudgetService[];
  readonly root: string;
  readonly scale: number;
  setClock(epochMs: number): void;
  client: number;
  steps: number;
  /** Each resolves to what was wrong with its answer. */
  readonly inFlight: Promise<Error | undefined>[];
}

const ROOTS = 3;
const rootOf = ({ root }: Real, at: number): string => (at === 0 ? root : `${root}, ${at}`);

interface Ref {
  readonly id: string;
  readonly generation?: number;
}

const told = ({ id, generation }: Ref): string => (generation === undefined ? id : `${id}#${generation}`);

abstract class Step implements fc.AsyncCommand<BudgetModel[], Real> {
  /** Which root it is about. All have the same scopes and ids. */
  at = 0;

  check(): boolean {
    return true;
  }

  async run(models: BudgetModel[], real: Real): Promise<void> {
    real.steps++;
    const expected = this.expect(models[this.at] as BudgetModel, real);
    const budgets = real.clients[real.client] as BudgetService;
    real.inFlight.push(
      this.act(budgets, { ...real, root: rootOf(real, this.at) })
        .then((result) => this.compare(result, expected))
        .then(
          () => undefined,
          (error: Error) => error,
        ),
    );
    // The calls are written to the connection one after the other.
    await nextTurn();
    if (real.inFlight.length >= IN_FLIGHT) await settle(models, real);
  }

  compare(result: unknown, expected: unknown): void {
    expectLike(result, expected);
  }

  abstract expect(model: BudgetModel, real: Real): unknown;
  abstract act(budgets: BudgetService, real: Real): Promise<unknown>;
}

async function answers(real: Real): Promise<void> {
  const wrong = (await Promise.all(real.inFlight.splice(0))).find((error) => error !== undefined);
  if (wrong) throw wrong;
}

/**
 * Waits for the calls in flight. The next client continues at the same tick, after a read that shows it the
 * time.
 */
async function settle(models: BudgetModel[], real: Real): Promise<void> {
  await answers(real);
  real.client = (real.client + 1) % real.clients.length;
  real.setClock((models[0] as BudgetModel).nowMs);
  const budgets = real.clients[real.client] as BudgetService;
  await budgets.balance({ root: real.root, scope: SCOPES[0] as string });
  for (const [at, model] of models.entries()) {
    const root = rootOf(real, at);
    const balances = await Promise.all(SCOPES.map((scope) => budgets.balance({ root, scope })));
    expectLike(
      balances,
      SCOPES.map((scope) => model.balance(scope)),
    );
  }
}

/** Works as toMatchObject, and is a hundred times as fast where nothing differs. */
function expectLike(result: unknown, expected: unknown): void {
  if (!isLike(result, expected)) expect(result).toMatchObject(expected as object);
}

function isLike(result: unknown, expected: unknown): boolean {
  if (typeof expected !== 'object' || expected === null) return result === expected;
  if (typeof result !== 'object' || result === null) return false;
  if (Array.isArray(expected) && (!Array.isArray(result) || result.length !== expected.length)) return false;
  return Object.entries(expected).every(([key, each]) =>
    isLike((result as Record<string, unknown>)[key], each),
  );
}

class Reserve extends Step {
  constructor(
    readonly id: string,
    readonly scopes: string[],
    readonly amount: number,
    readonly ticks: number,
    readonly renew: boolean,
  ) {
    super();
  }
  expect = (model: BudgetModel, { scale }: Real) =>
    model.reserve(this.id, this.scopes, this.amount * scale, this.ticks, this.renew);
  act = (budgets: BudgetService, { root, scale }: Real) =>
    budgets.reserve({
      root,
      id: this.id,
      scopes: this.scopes,
      amount: this.amount * scale,
      ttlMs: ttlMsOf(this.ticks),
      renew: this.renew,
    });
  override compare(
    result: { ok: boolean; replayed?: boolean; balances?: Balances },
    expected: unknown,
  ): void {
    super.compare(result, expected);
    // I1
    if (!result.ok || result.replayed || this.amount === 0) return;
    for (const { limit, credits, committed, reserved } of result.balances ?? [])
      if (limit !== 'unlimited') expect(committed + reserved <= limit + credits).toBe(true);
  }
  override toString = () =>
    `reserve ${this.id} ${this.scopes.join()} ${this.amount} for ${this.ticks}${this.renew ? ', renewed' : ''}`;
}
type Balances = { limit: number | 'unlimited'; credits: number; committed: number; reserved: number }[];

class Charge extends Step {
  constructor(
    readonly id: string,
    readonly scopes: string[],
    readonly amount: number,
    readonly mode: 'enforce' | 'record',
  ) {
    super();
  }
  expect = (model: BudgetModel, { scale }: Real) =>
    model.charge(this.id, this.scopes, this.amount * scale, this.mode);
  act = (budgets: BudgetService, { root, scale }: Real) =>
    budgets.charge({ root, id: this.id, scopes: this.scopes, amount: this.amount * scale, mode: this.mode });
  override toString = () => `charge ${this.id} ${this.scopes.join()} ${this.amount} ${this.mode}`;
}

class Finalize extends Step {
  constructor(
    readonly ref: Ref,
    readonly actual: number,
    readonly overage: 'record' | 'cap' | 'reject',
    readonly late: 'record' | 'if-available' | 'reject',
  ) {
    super();
  }
  expect = (model: BudgetModel, { scale }: Real) =>
    model.finalize(this.ref.id, this.actual * scale, this.overage, this.late, this.ref.generation);
  act = (budgets: BudgetService, { root, scale }: Real) =>
    budgets.finalize({ root, ...this.ref }, this.actual * scale, { overage: this.overage, late: this.late });
  override toString = () => `finalize ${told(this.ref)} ${this.actual} ${this.overage} ${this.late}`;
}

class Abort extends Step {
  constructor(readonly ref: Ref) {
    super();
  }
  expect = (model: BudgetModel) => model.abort(this.ref.id, this.ref.generation);
  act = (budgets: BudgetService, { root }: Real) => budgets.abort({ root, ...this.ref });
  override toString = () => `abort ${told(this.ref)}`;
}

class Extend extends Step {
  constructor(
    readonly ref: Ref,
    readonly ticks: number,
  ) {
    super();
  }
  expect = (model: BudgetModel) => model.extend(this.ref.id, this.ticks, this.ref.generation);
  act = (budgets: BudgetService, { root }: Real) =>
    budgets.extend({ root, ...this.ref }, ttlMsOf(this.ticks));
  override toString = () => `extend ${told(this.ref)} for ${this.ticks}`;
}

class Refund extends Step {
  constructor(
    readonly ref: Ref,
    readonly amount: number,
    readonly refundId: string,
  ) {
    super();
  }
  expect = (model: BudgetModel, { scale }: Real) =>
    model.refund(this.ref.id, this.amount * scale, this.refundId, this.ref.generation);
  act = (budgets: BudgetService, { root, scale }: Real) =>
    budgets.refund({ root, ...this.ref }, this.amount * scale, this.refundId);
  override toString = () => `refund ${told(this.ref)} ${this.amount} as ${this.refundId}`;
}

class Credit extends Step {
  constructor(
    readonly id: string,
    readonly scope: string,
    readonly period: PeriodName,
    readonly amount: number,
  ) {
    super();
  }
  expect = (model: BudgetModel, { scale }: Real) =>
    model.credit(this.id, this.scope, this.period, this.amount * scale);
  act = (budgets: BudgetService, { root, scale }: Real) =>
    budgets.credit({
      root,
      id: this.id,
      scope: this.scope,
      period: parsePeriodKey(this.period),
      amount: this.amount * scale,
    });
  override toString = () => `credit ${this.id} ${this.scope} ${this.period} ${this.amount}`;
}

class SetLimit extends Step {
  constructor(
    readonly scope: string,
    readonly period: PeriodName,
    readonly limit: number | 'unlimited' | null,
  ) {
    super();
  }
  scaled = ({ scale }: Real) => (typeof this.limit === 'number' ? this.limit * scale : this.limit);
  expect = (model: BudgetModel, real: Real) => model.setLimit(this.scope, this.period, this.scaled(real));
  act = (budgets: BudgetService, real: Real) =>
    budgets.setLimit({
      root: real.root,
      scope: this.scope,
      period: parsePeriodKey(this.period),
      limit: this.scaled(real),
    });
  override toString = () => `setLimit ${this.scope} ${this.period} ${this.limit}`;
}

class Get extends Step {
  constructor(readonly ref: Ref) {
    super();
  }
  expect = (model: BudgetModel) => model.get(this.ref.id, this.ref.generation);
  act = (budgets: BudgetService, { root }: Real) => budgets.get({ root, ...this.ref });
  override compare(result: unknown, expected: unknown): void {
    if (expected === null) expect(result).toBeNull();
    else super.compare(result, expected);
  }
  override toString = () => `get ${told(this.ref)}`;
}

class Reap extends Step {
  expect = (model: BudgetModel) => model.reap();
  act = (budgets: BudgetService, { root }: Real) => budgets.reap({ root });
  override compare(result: { expired: string[] }, expected: string[]): void {
    expect([...result.expired].sort()).toEqual([...expected].sort());
  }
  override toString = () => 'reap';
}

/** A whole body takes more than one step, and runs alone. */
class Run implements fc.AsyncCommand<BudgetModel[], Real> {
  at = 0;

  constructor(
    readonly id: string,
    readonly scopes: string[],
    readonly amount: number,
    readonly end: BodyEnd,
  ) {}
  check = () => true;
  async run(models: BudgetModel[], real: Real): Promise<void> {
    real.steps++;
    await answers(real);
    const model = models[this.at] as BudgetModel;
    const { scale } = real;
    const root = rootOf(real, this.at);
    const { how, cost, noted } = this.end;
    const end = { how, cost: cost === undefined ? cost : cost * scale, noted: noted * scale };
    const expected = model.run(this.id, this.scopes, this.amount * scale, 7, end);
    const body = (hold: CurrentHold): string => {
      hold.spent(end.noted);
      if (how === 'hung up') throw new DOMException('x', 'AbortError');
      if (how === 'failed') throw new Error('x');
      return how;
    };
    const outcome = await (real.clients[real.client] as BudgetService)
      .run(body, {
        ...{ root, id: this.id, scopes: this.scopes, amount: this.amount * scale, ttlMs: ttlMsOf(7) },
        actual: () => end.cost as number,
      })
      .then(
        () => ({ ok: true, ended: how }),
        (error: Error) => outcomeOf(error, how),
      );
    const { ok, status, retryAfter } = expected as Outcome;
    expectLike(outcome, { ok, ...pick(expected) });
    if (status === undefined) return;
    // The HTTP answer says what would in fact fit when. A real clock goes on after each tick.
    const waited = (outcome as Outcome).retryAfter;
    expect((outcome as Outcome).status).toBe(status);
    expect(waited === undefined).toBe(retryAfter === undefined);
    if (waited !== undefined && retryAfter !== undefined) {
      expect(waited).toBeLessThanOrEqual(retryAfter);
      expect(waited).toBeGreaterThan(retryAfter - TICK_MS / 2_000);
    }
  }
  toString = () =>
    `run ${this.id} ${this.scopes.join()} ${this.amount}, ${this.end.how} ${this.end.cost} noted ${this.end.noted}`;
}

interface Outcome {
  readonly ok: boolean;
  readonly status?: number;
  readonly retryAfter?: number;
}

const DAY_MS = 86_400_000;

function outcomeOf(error: Error, how: string): object {
  if (error instanceof BudgetExceededError) {
    const answer = toHttpException(error, 1_000 * DAY_MS) as HttpException;
    const { context } = answer.getResponse() as { context: { retryAfter?: number } };
    return { ok: false, reason: 'exceeded', status: answer.getStatus(), retryAfter: context.retryAfter };
  }
  if (error instanceof BudgetConflictError) return { ok: false, reason: error.reason };
  if (error.message !== 'x') throw error;
  return { ok: true, ended: how };
}

const pick = (outcome: { ended?: string; reason?: string }): object =>
  outcome.reason === undefined ? { ended: outcome.ended } : { reason: outcome.reason };

class Jump implements fc.AsyncCommand<BudgetModel[], Real> {
  constructor(readonly ticks: number) {}
  check = () => true;
  async run(models: BudgetModel[], real: Real): Promise<void> {
    real.steps++;
    await answers(real);
    if (models.every((model) => model.mayJump(this.ticks)))
      for (const model of models) model.jump(this.ticks);
    await settle(models, real);
  }
  toString = () => `jump ${this.ticks}`;
}

const id = fc.integer({ min: 1, max: 15 }).map((n) => `op${n}`);
const ref = fc
  .tuple(id, fc.constantFrom(undefined, undefined, 1, 1, 2, 3))
  .map(([each, generation]): Ref => (generation === undefined ? { id: each } : { id: each, generation }));
const note = fc.integer({ min: 1, max: 5 }).map((n) => `note${n}`);
const scopes = fc.shuffledSubarray(SCOPES, { minLength: 1 });
const ticks = fc.constantFrom(0, 0, 1, 2, 7);
const amount = (max: number): fc.Arbitrary<number> => fc.integer({ min: 0, max });
const limited = fc.constantFrom<[string, PeriodName]>(
  ['user:1', 'hour'],
  ['user:2', 'lifetime'],
  ['user:2', 'hour'],
  ['team:1', 'day@America/New_York'],
  ['org', 'window:14400000'],
  ['org', 'lifetime'],
);
const limitable = fc.oneof(
  limited,
  fc.constantFrom<[string, PeriodName]>(['user', 'hour'], ['team', 'day@America/New_York']),
);

const reserveStep = fc.tuple(id, scopes, amount(40), ticks, fc.boolean()).map((args) => new Reserve(...args));
const finalizeStep = fc
  .tuple(
    ref,
    amount(60),
    fc.constantFrom('record' as const, 'cap' as const, 'reject' as const),
    fc.constantFrom('record' as const, 'if-available' as const, 'reject' as const),
  )
  .map((args) => new Finalize(...args));
const runStep = fc
  .tuple(
    ...([id, scopes, amount(40)] as const),
    fc.record<BodyEnd>({
      how: fc.constantFrom('well', 'hung up', 'failed'),
      cost: fc.oneof(amount(60), fc.constant(undefined)),
      noted: fc.oneof(fc.constant(0), amount(20)),
    }),
  )
  .map((args) => new Run(...args));
const steps = [
  reserveStep,
  reserveStep,
  reserveStep,
  finalizeStep,
  finalizeStep,
  fc
    .tuple(id, scopes, amount(40), fc.constantFrom('enforce' as const, 'record' as const))
    .map((args) => new Charge(...args)),
  ref.map((each) => new Abort(each)),
  fc.tuple(ref, ticks).map((args) => new Extend(...args)),
  fc.tuple(ref, amount(20), note).map((args) => new Refund(...args)),
  fc.tuple(note, limited, amount(20)).map(([each, [scope, period], n]) => new Credit(each, scope, period, n)),
  fc
    .tuple(limitable, fc.option(fc.oneof(amount(200), fc.constant('unlimited' as const))))
    .map(([[scope, period], limit]) => new SetLimit(scope, period, limit)),
  ref.map((each) => new Get(each)),
  runStep,
  fc.constant(new Reap()),
];
const inARoot = fc
  .tuple(fc.constantFrom(0, 0, 0, 1, 2), fc.oneof(...steps))
  .map(([at, step]) => Object.assign(step, { at }));
const jump = fc.oneof(fc.integer({ min: -2, max: 4 }), fc.constantFrom(16, 60)).map((n) => new Jump(n));

/** Shrinking a mismatch stops after this time. Otherwise the test would time out without a report. */
const SHRINKING = { interruptAfterTimeLimit: TIMEOUT_MS / 4, markInterruptAsFailure: true };

async function keepsToTheModel(
  setClock: (epochMs: number) => void,
  backends: readonly BudgetBackend[],
  atLeast: number,
): Promise<number> {
  const seed = Number(process.env.SYNCGUARD_SEED ?? Math.floor(Math.random() * 2 ** 31));
  console.info(`budget model: SYNCGUARD_SEED=${seed} repeats this run`);
  let taken = 0;
  let run = 0;
  const commands = fc.commands([...steps.map(() => inARoot), jump], {
    maxCommands: STEPS_A_RUN,
    size: 'max',
  });
  const property = fc.asyncProperty(commands, fc.boolean(), async (sequence, isBig) => {
    const scale = isBig ? 2 ** 36 : 1;
    const limits = limitsAt(scale);
    const models = Array.from({ length: ROOTS }, () => new BudgetModel(limits.map((each) => ({ ...each }))));
    const options = resolveBudgetDefaults({
      limits: limits.map((each) => ({ ...each, period: parsePeriodKey(each.period) })),
      retentionMs: RETENTION_MS,
      idTtlMs: ID_TTL_MS,
      reaper: false,
    });
    const clients = backends.map((backend) => new BudgetService(backend, options));
    const real: Real = { clients, root: `run ${run++}`, scale, setClock, client: 0, steps: 0, inFlight: [] };
    const setup = async () => {
      await settle(models, real);
      // A lifetime is counted in each root. The keys of a root of windows only end by themselves, which memory has not.
      for (const [at, model] of models.entries()) {
        const first = { id: 'first', scopes: ['org'], amount: 0 };
        model.charge(first.id, first.scopes, first.amount, 'enforce');
        await clients[0]?.charge({ root: rootOf(real, at), ...first });
      }
      return { model: models, real };
    };
    await fc.asyncModelRun(setup, sequence);
    await settle(models, real);
    for (let at = 0; at < ROOTS; at++)
      expect(await (clients[0] as BudgetService).verify(rootOf(real, at))).toEqual({
        ok: true,
        problems: [],
        quarantined: [],
      });
    taken += real.steps;
  });
  for (let round = 0; taken < atLeast; round++)
    await fc.assert(property, { ...SHRINKING, seed: seed + round, numRuns: 10 });
  return taken;
}

beforeAll(() => void jest.spyOn(Logger.prototype, 'error').mockImplementation(() => {}));

describe('budgets under random commands keep to the reference model', () => {
  it(
    'in memory',
    async () => {
      let nowMs = 0;
      const backend = new MemoryBudgetBackend({ clock: { now: () => nowMs }, retentionMs: RETENTION_MS });
      expect(await keepsToTheModel((ms) => (nowMs = ms), [backend], STEPS / 10)).toBeGreaterThanOrEqual(
        STEPS / 10,
      );
    },
    TIMEOUT_MS,
  );

  it(
    `on Redis, over ${STEPS} steps of several clients`,
    async () => {
      const { clock } = await freshRedis();
      const backends = [1, 2, 3].map(
        () =>
          new RedisBudgetBackend(new ScriptRunner(workerRedis().client() as never, 10_000), {
            keyPrefix: 'model',
            retentionMs: RETENTION_MS,
          }),
      );
      expect(await keepsToTheModel((ms) => clock.set(ms), backends, STEPS)).toBeGreaterThanOrEqual(STEPS);
    },
    TIMEOUT_MS,
  );
});

it('names periods as the model does', () => {
  for (const name of ['lifetime', 'hour', 'day@America/New_York', 'window:14400000'] satisfies PeriodName[])
    expect(periodKey(parsePeriodKey(name))).toBe(name);
});
