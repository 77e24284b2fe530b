import fc from 'fast-check';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { periodKey, parsePeriodKey } from '../../lib/budget/budget.calendar.js';
import type { BudgetBackend } from '../../lib/budget/budget.backend.js';
import { MemoryBudgetBackend } from '../../lib/budget/budget.memory-backend.js';
import { resolveBudgetDefaults } from '../../lib/budget/budget.options.js';
import { RedisBudgetBackend } from '../../lib/budget/budget.redis-backend.js';
import { BudgetService } from '../../lib/budget/budget.service.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { BudgetModel, type ModelLimit, type PeriodName, RETENTION_MS, ttlMsOf } from './budget.model.js';

const STEPS = 100_000;
const STEPS_A_RUN = 1_000;
/** Sent together; their answers are compared afterwards. */
const IN_FLIGHT = 50;

const SCOPES = ['user:1', 'user:2', 'team:1', 'org'];

/** Small amounts, and the same times 2^48, where they need more than a double holds. */
const limitsAt = (scale: bigint): ModelLimit[] => [
  { scope: 'user', period: 'lifetime', limit: 5_000n * scale, thresholds: [] },
  { scope: 'user', period: 'hour', limit: 60n * scale, thresholds: [50, 100] },
  { scope: 'user:2', period: 'hour', limit: 90n * scale, thresholds: [] },
  { scope: 'team', period: 'day@America/New_York', limit: 100n * scale, thresholds: [80, 120] },
  { scope: 'org', period: 'lifetime', limit: 'unlimited', thresholds: [] },
  { scope: 'org', period: 'window:14400000', limit: 120n * scale, thresholds: [100] },
];

interface Real {
  readonly clients: readonly BudgetService[];
  readonly root: string;
  readonly scale: bigint;
  setClock(epochMs: number): void;
  client: number;
  steps: number;
  /** Each comes to what was wrong with its answer. */
  readonly inFlight: Promise<Error | undefined>[];
}

abstract class Step implements fc.AsyncCommand<BudgetModel, Real> {
  check(): boolean {
    return true;
  }

  async run(model: BudgetModel, real: Real): Promise<void> {
    real.steps++;
    const expected = this.expect(model, real);
    const budgets = real.clients[real.client] as BudgetService;
    real.inFlight.push(
      this.act(budgets, real)
        .then((result) => this.compare(result, expected))
        .then(
          () => undefined,
          (error: Error) => error,
        ),
    );
    // One after the other onto the connection.
    await nextTurn();
    if (real.inFlight.length >= IN_FLIGHT) await settle(model, real);
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

/** Waits for what is in flight; the next client goes on, at the same tick, after a look that lets it see the time. */
async function settle(model: BudgetModel, real: Real): Promise<void> {
  await answers(real);
  real.client = (real.client + 1) % real.clients.length;
  real.setClock(model.nowMs);
  const budgets = real.clients[real.client] as BudgetService;
  await budgets.balance({ root: real.root, scope: SCOPES[0] as string });
  const balances = await Promise.all(SCOPES.map((scope) => budgets.balance({ root: real.root, scope })));
  expectLike(balances, toNumbers(SCOPES.map((scope) => model.balance(scope))));
}

/** toMatchObject, a hundred times as fast where all is well. */
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

/** As calls without an amount show amounts. */
function toNumbers(value: unknown): unknown {
  if (typeof value === 'bigint') return value <= Number.MAX_SAFE_INTEGER ? Number(value) : value;
  if (Array.isArray(value)) return value.map(toNumbers);
  if (typeof value !== 'object' || value === null) return value;
  return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, toNumbers(each)]));
}

class Reserve extends Step {
  constructor(
    readonly id: string,
    readonly scopes: string[],
    readonly amount: bigint,
    readonly ticks: number,
  ) {
    super();
  }
  expect = (model: BudgetModel, { scale }: Real) =>
    model.reserve(this.id, this.scopes, this.amount * scale, this.ticks);
  act = (budgets: BudgetService, { root, scale }: Real) =>
    budgets.reserve({
      root,
      id: this.id,
      scopes: this.scopes,
      amount: this.amount * scale,
      ttlMs: ttlMsOf(this.ticks),
    });
  override compare(
    result: { ok: boolean; replayed?: boolean; balances?: Balances },
    expected: unknown,
  ): void {
    super.compare(result, expected);
    // I1
    if (!result.ok || result.replayed || this.amount === 0n) return;
    for (const { limit, credits, committed, reserved } of result.balances ?? [])
      if (limit !== 'unlimited') expect(committed + reserved <= limit + credits).toBe(true);
  }
  override toString = () => `reserve ${this.id} ${this.scopes.join()} ${this.amount} for ${this.ticks}`;
}
type Balances = { limit: bigint | 'unlimited'; credits: bigint; committed: bigint; reserved: bigint }[];

class Charge extends Step {
  constructor(
    readonly id: string,
    readonly scopes: string[],
    readonly amount: bigint,
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
    readonly id: string,
    readonly actual: bigint,
    readonly overage: 'record' | 'cap' | 'reject',
    readonly late: 'record' | 'if_available' | 'reject',
  ) {
    super();
  }
  expect = (model: BudgetModel, { scale }: Real) =>
    model.finalize(this.id, this.actual * scale, this.overage, this.late);
  act = (budgets: BudgetService, { root, scale }: Real) =>
    budgets.finalize({ root, id: this.id }, this.actual * scale, { overage: this.overage, late: this.late });
  override toString = () => `finalize ${this.id} ${this.actual} ${this.overage} ${this.late}`;
}

class Abort extends Step {
  constructor(readonly id: string) {
    super();
  }
  expect = (model: BudgetModel) => toNumbers(model.abort(this.id));
  act = (budgets: BudgetService, { root }: Real) => budgets.abort({ root, id: this.id });
  override toString = () => `abort ${this.id}`;
}

class Extend extends Step {
  constructor(
    readonly id: string,
    readonly ticks: number,
  ) {
    super();
  }
  expect = (model: BudgetModel) => model.extend(this.id, this.ticks);
  act = (budgets: BudgetService, { root }: Real) =>
    budgets.extend({ root, id: this.id }, ttlMsOf(this.ticks));
  override toString = () => `extend ${this.id} for ${this.ticks}`;
}

class Refund extends Step {
  constructor(
    readonly id: string,
    readonly amount: bigint,
    readonly refundId: string,
  ) {
    super();
  }
  expect = (model: BudgetModel, { scale }: Real) => model.refund(this.id, this.amount * scale, this.refundId);
  act = (budgets: BudgetService, { root, scale }: Real) =>
    budgets.refund({ root, id: this.id }, this.amount * scale, this.refundId);
  override toString = () => `refund ${this.id} ${this.amount} as ${this.refundId}`;
}

class Credit extends Step {
  constructor(
    readonly id: string,
    readonly scope: string,
    readonly period: PeriodName,
    readonly amount: bigint,
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
    readonly limit: bigint | 'unlimited' | null,
  ) {
    super();
  }
  scaled = ({ scale }: Real) => (typeof this.limit === 'bigint' ? this.limit * scale : this.limit);
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
  constructor(readonly id: string) {
    super();
  }
  expect = (model: BudgetModel) => toNumbers(model.get(this.id));
  act = (budgets: BudgetService, { root }: Real) => budgets.get({ root, id: this.id });
  override compare(result: unknown, expected: unknown): void {
    if (expected === null) expect(result).toBeNull();
    else super.compare(result, expected);
  }
  override toString = () => `get ${this.id}`;
}

class Reap extends Step {
  expect = (model: BudgetModel) => model.reap();
  act = (budgets: BudgetService, { root }: Real) => budgets.reap({ root });
  override compare(result: { expired: string[] }, expected: Set<string>): void {
    expect(result.expired).toHaveLength(expected.size);
    expect(new Set(result.expired)).toEqual(expected);
  }
  override toString = () => 'reap';
}

class Jump implements fc.AsyncCommand<BudgetModel, Real> {
  constructor(readonly ticks: number) {}
  check = () => true;
  async run(model: BudgetModel, real: Real): Promise<void> {
    real.steps++;
    await answers(real);
    model.jump(this.ticks);
    await settle(model, real);
  }
  toString = () => `jump ${this.ticks}`;
}

const id = fc.integer({ min: 1, max: 15 }).map((n) => `op${n}`);
const note = fc.integer({ min: 1, max: 5 }).map((n) => `note${n}`);
const scopes = fc.shuffledSubarray(SCOPES, { minLength: 1 });
const ticks = fc.constantFrom(0, 0, 1, 2, 7);
const amount = (max: number): fc.Arbitrary<bigint> => fc.bigInt({ min: 0n, max: BigInt(max) });
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

const reserveStep = fc.tuple(id, scopes, amount(40), ticks).map((args) => new Reserve(...args));
const finalizeStep = fc
  .tuple(
    id,
    amount(60),
    fc.constantFrom('record' as const, 'cap' as const, 'reject' as const),
    fc.constantFrom('record' as const, 'if_available' as const, 'reject' as const),
  )
  .map((args) => new Finalize(...args));
const steps = [
  reserveStep,
  reserveStep,
  reserveStep,
  finalizeStep,
  finalizeStep,
  fc
    .tuple(id, scopes, amount(40), fc.constantFrom('enforce' as const, 'record' as const))
    .map((args) => new Charge(...args)),
  id.map((each) => new Abort(each)),
  fc.tuple(id, ticks).map((args) => new Extend(...args)),
  fc.tuple(id, amount(20), note).map((args) => new Refund(...args)),
  fc.tuple(note, limited, amount(20)).map(([each, [scope, period], n]) => new Credit(each, scope, period, n)),
  fc
    .tuple(limitable, fc.option(fc.oneof(amount(200), fc.constant('unlimited' as const))))
    .map(([[scope, period], limit]) => new SetLimit(scope, period, limit)),
  id.map((each) => new Get(each)),
  fc.constant(new Reap()),
  fc.integer({ min: -2, max: 4 }).map((n) => new Jump(n)),
];

async function keepsToTheModel(
  setClock: (epochMs: number) => void,
  backends: readonly BudgetBackend[],
  atLeast: number,
): Promise<number> {
  const seed = Number(process.env.SYNCGUARD_SEED ?? Math.floor(Math.random() * 2 ** 31));
  console.info(`budget model: SYNCGUARD_SEED=${seed} repeats this run`);
  let taken = 0;
  let run = 0;
  const commands = fc.commands(steps, { maxCommands: STEPS_A_RUN, size: 'max' });
  const property = fc.asyncProperty(commands, fc.boolean(), async (sequence, isBig) => {
    const scale = isBig ? 2n ** 48n : 1n;
    const limits = limitsAt(scale);
    const model = new BudgetModel(limits.map((each) => ({ ...each })));
    const options = resolveBudgetDefaults({
      limits: limits.map((each) => ({ ...each, period: parsePeriodKey(each.period) })),
      retentionMs: RETENTION_MS,
      reaper: false,
    });
    const clients = backends.map((backend) => new BudgetService(backend, options));
    const real: Real = { clients, root: `run ${run++}`, scale, setClock, client: 0, steps: 0, inFlight: [] };
    const setup = async () => {
      await settle(model, real);
      return { model, real };
    };
    await fc.asyncModelRun(setup, sequence);
    await settle(model, real);
    expect(await (clients[0] as BudgetService).verify(real.root)).toEqual({ ok: true, problems: [] });
    taken += real.steps;
  });
  for (let round = 0; taken < atLeast; round++)
    await fc.assert(property, { seed: seed + round, numRuns: 10 });
  return taken;
}

describe('budgets under random commands keep to the reference model', () => {
  it('in memory', async () => {
    let nowMs = 0;
    const backend = new MemoryBudgetBackend({ clock: { now: () => nowMs }, retentionMs: RETENTION_MS });
    expect(await keepsToTheModel((ms) => (nowMs = ms), [backend], STEPS / 10)).toBeGreaterThanOrEqual(
      STEPS / 10,
    );
  }, 60_000);

  it(`on Redis, over ${STEPS} steps of several clients`, async () => {
    const { clock } = await freshRedis();
    const backends = [1, 2, 3].map(
      () =>
        new RedisBudgetBackend(new ScriptRunner(workerRedis().client() as never, 10_000), {
          keyPrefix: 'model',
          retentionMs: RETENTION_MS,
        }),
    );
    expect(await keepsToTheModel((ms) => clock.set(ms), backends, STEPS)).toBeGreaterThanOrEqual(STEPS);
  }, 120_000);
});

it('names periods as the model does', () => {
  for (const name of ['lifetime', 'hour', 'day@America/New_York', 'window:14400000'] satisfies PeriodName[])
    expect(periodKey(parsePeriodKey(name))).toBe(name);
});
