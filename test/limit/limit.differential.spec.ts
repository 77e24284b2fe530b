import { randomInt } from 'node:crypto';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import type { LimitBackend, BackendDecision } from '../../lib/limit/limit.backend.js';
import { withLimit } from '../../lib/limit/limit.validate.js';
import {
  type PolicyCheck,
  type PolicySubject,
  resolvePolicy,
  type ResolvedPolicy,
} from '../../lib/limit/limit.policy.js';
import { RedisLimitBackend } from '../../lib/limit/redis/limit.redis-backend.js';
import type { CountedCalls } from '../../lib/limit/limit.types.js';
import type { LimitPolicy } from '../../lib/limit/policy.types.js';
import { createCallId } from '../../lib/limit/decisions.js';
import { ScriptRunner } from '../../lib/script/script-runner.js';
import { freshRedis, workerRedis } from '../support/redis.js';
import { LimitModel } from './limit.model.js';

const STEPS = Number(process.env.SYNCGUARD_STEPS ?? 100_000);
const STEPS_A_WORLD = 2_000;
const STEPS_A_BATCH = 40;
const SEED = Number(process.env.SYNCGUARD_SEED ?? randomInt(2 ** 31));

/** mulberry32: a seed repeats the run. */
function randomFrom(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (state + 0x6d2b79f5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return Math.floor((((t ^ (t >>> 14)) >>> 0) / 2 ** 32) * below);
  };
}

/** One operation, applied to each of the three. */
interface Step {
  readonly text: string;
  /** Who is asked, if it is a question. */
  readonly asks?: readonly PolicySubject[];
  onBackend(backend: LimitBackend): Promise<unknown>;
  onModel(model: LimitModel): unknown;
}

describe('memory, Redis and the model', () => {
  beforeEach(freshRedis);

  it(`agree over ${STEPS} random steps with a moved clock (seed ${SEED})`, async () => {
    console.log(`differential test of the limiter: seed ${SEED} (SYNCGUARD_SEED repeats it)`);
    const { clock } = workerRedis();
    const client = workerRedis().client();
    await client.ping();
    const redis = new RedisLimitBackend(new ScriptRunner(client, 10_000), 'test');
    const random = randomFrom(SEED);
    const seen = new Map<string, number>();
    let steps = 0;
    let mismatches = 0;
    let nowMs = Date.now();

    for (let world = 0; steps < STEPS; world++) {
      const memory = new MemoryLimitBackend({ now: () => nowMs });
      const model = new LimitModel();
      const cast = createCast(random, world);
      let lastWaitMs = 0;
      clock.hold(nowMs);
      await warmUp(redis, cast);

      for (let batch = 0; batch < STEPS_A_WORLD / STEPS_A_BATCH; batch++) {
        const moveMs = nextMove(random, lastWaitMs);
        if (moveMs < 0)
          await settle(cast, memory, model, async () => void (await client.scan(0, 'COUNT', 10_000)));
        nowMs += moveMs;
        clock.hold(nowMs);
        model.now = nowMs;
        const plan = Array.from({ length: STEPS_A_BATCH }, () => cast.nextStep());
        const fromRedis = await Promise.all(plan.map((step) => step.onBackend(redis)));
        for (const [i, step] of plan.entries()) {
          const byModel = step.onModel(model);
          const fromBackends = [await step.onBackend(memory), fromRedis[i]];
          // The model does not say what changes by hand have found, and whether a key is known. A block is new to Redis
          // for as long as it has its whole length.
          const answers = [...fromBackends, byModel === undefined ? fromBackends[0] : byModel].map((x) =>
            JSON.stringify(x, (key, value: unknown) =>
              key === 'isNew' || (key === 'isUnknown' && byModel) ? undefined : value,
            ),
          );
          steps++;
          note(seen, step.asks, fromRedis[i]);
          lastWaitMs = waitOf(fromRedis[i]) ?? lastWaitMs;
          if (answers.every((answer) => answer === answers[0])) continue;
          mismatches++;
          if (mismatches <= 5)
            console.error(
              `world ${world}, batch ${batch}, ${step.text}:\nmemory ${answers[0]}\nredis  ${answers[1]}\nmodel  ${answers[2]}`,
            );
        }
        if (mismatches > 0) break;
      }
      if (mismatches > 0) break;
    }

    expect({ mismatches, steps }).toEqual({ mismatches: 0, steps: STEPS });
    // A run that never blocked would prove little.
    for (const kind of ['allowed', 'temp', 'long', 'manual', 'busy', 'window', 'fixed window'])
      expect(seen.get(kind)).toBeGreaterThan(STEPS / 1000);
    console.log(
      `steps ${steps}, mismatches ${mismatches}, answers ${JSON.stringify(Object.fromEntries(seen))}`,
    );
  }, 180_000);
});

interface Cast {
  readonly policies: ResolvedPolicy[];
  readonly identities: string[];
  readonly groups: PolicyCheck[][];
  nextStep(): Step;
}

function createCast(random: (below: number) => number, world: number): Cast {
  const pick = <T>(list: readonly T[]): T => list[random(list.length)] as T;
  const policies = Array.from({ length: 5 }, (_, i) => randomPolicy(random, `w${world}p${i}`));
  const checkOf = (): PolicyCheck => {
    const policy = pick(policies);
    return {
      policy,
      identity: `${policy.name}\0${pick(['a', 'b'])}`,
      cost: random(5) === 0 && mayCostTwo(policy) ? 2 : 1,
    };
  };
  /** A call of a plan that is suspended or unlimited, or one that costs nothing. */
  const uncountedOf = (each: PolicyCheck): PolicyCheck => {
    const limit = pick([0, 'unlimited', undefined]);
    const policy = limit === undefined ? each.policy : withLimit(each.policy, limit);
    return { ...each, policy, cost: 0 };
  };
  // Several limits of one call are of different limiters.
  const groups = [2, 3].map((n) =>
    policies.slice(0, n).map((policy) => ({ policy, identity: `${policy.name}\0a`, cost: 1 })),
  );
  // In a world with routes nothing is forgiven: it is open which of two attempts in one millisecond is the newer.
  const routes = world % 2 === 0 ? [''] : ['', 'rou1', 'rou2'];
  const inFlight: { check: PolicyCheck; callId: string }[] = [];
  // What may be sent again. Not once attempts were forgiven: which of two in one millisecond is newer is open.
  let last: (() => Step) | undefined;

  const enter = (checks: PolicyCheck[], callId: string): Step => {
    for (const each of checks)
      if (each.cost === 0) continue;
      else if (each.policy.count !== 'attempt' || (isFixedWindow(each) && random(4) === 0))
        inFlight.push({ check: each, callId });
    return check(checks, callId);
  };
  const check = (checks: PolicyCheck[], callId: string): Step => {
    last = () => check(checks, callId);
    return {
      asks: checks,
      text: `check ${checks.map((each) => `${JSON.stringify(each.identity)} cost ${each.cost}`).join(' and ')} by ${callId}`,
      onBackend: (backend) => backend.check(checks, callId),
      onModel: (model) => model.check(checks, callId),
    };
  };
  const confirm = (each: PolicyCheck, callId: string, blocks = random(3) > 0): Step => {
    last = () => confirm(each, callId, blocks);
    return {
      asks: [each],
      text: `confirm ${JSON.stringify(each.identity)} by ${callId}${blocks ? '' : ' without a block'}`,
      onBackend: (backend) => backend.confirm(each, callId, { blocks }),
      onModel: (model) => model.confirm(each.identity, each.policy, each.cost, callId, blocks),
    };
  };
  const renew = ({ check: each, callId }: (typeof inFlight)[0]): Step => ({
    text: `renew ${JSON.stringify(each.identity)} by ${callId}`,
    onBackend: (backend) => backend.renew(each, callId),
    onModel: (model) => model.renew(each.identity, each.policy, callId),
  });
  const settleOne = (): Step => {
    const { check: each, callId } = inFlight.splice(random(inFlight.length), 1)[0] as (typeof inFlight)[0];
    const { identity } = each;
    if (random(3) > 0 && !isFixedWindow(each)) return confirm(each, callId);
    const forget = random(2) === 0;
    return {
      text: `withdraw ${JSON.stringify(identity)} by ${callId}${forget ? ' and forget' : ''}`,
      onBackend: (backend) => backend.withdraw(each, callId, forget),
      onModel: (model) => model.withdraw(each, callId, forget),
    };
  };
  const byHand = (): Step => {
    const subject = checkOf();
    const { identity } = subject;
    const text = (what: string): string => `${what} ${JSON.stringify(identity)}`;
    switch (random(routes.length > 1 ? 4 : 7)) {
      case 0: {
        const ms = 1 + random(5_000);
        const reason = pick(['spam', 'a; b é %20', '']);
        return {
          text: text(`block ${ms}`),
          onBackend: (backend) => backend.block(subject, ms, reason),
          onModel: (model) => model.block(identity, ms, reason || 'manual'),
        };
      }
      case 1:
      case 2:
        return {
          text: text('unblock'),
          onBackend: (backend) => backend.unblock(subject),
          onModel: (model) => model.unblock(identity),
        };
      case 3:
        return {
          text: text('reset'),
          onBackend: (backend) => backend.reset(subject),
          onModel: (model) => model.reset(identity),
        };
      default: {
        const n = 1 + random(4);
        const callId = createCallId();
        last = undefined;
        return {
          text: text(`forgive ${n}`),
          onBackend: (backend) => backend.forgive(subject, n, callId),
          onModel: (model) => model.forgive(identity, n, callId),
        };
      }
    }
  };

  return {
    policies,
    identities: policies.flatMap(({ name }) => [`${name}\0a`, `${name}\0b`]),
    groups,
    nextStep() {
      const dice = random(100);
      if (dice < 4 && last) return last();
      if (dice < 7 && inFlight.length > 0) return renew(pick(inFlight));
      if (dice < 20 && inFlight.length > 0) return settleOne();
      if (dice < 28) return byHand();
      if (dice < 36) {
        const subject = checkOf();
        return {
          asks: [subject],
          text: `peek ${JSON.stringify(subject.identity)}`,
          onBackend: (backend) => backend.peek(subject),
          onModel: (model) => model.peek(subject),
        };
      }
      const asked = dice < 48 ? pick(groups) : [checkOf()];
      return enter(random(10) === 0 ? asked.map(uncountedOf) : asked, createCallId(pick(routes)));
    },
  };
}

const isFixedWindow = ({ policy }: Pick<PolicySubject, 'policy'>): boolean =>
  policy.algorithm === 'fixed-window';

/** A policy that counts successes has room for the dearest call in each of its tiers. */
const mayCostTwo = ({ count, rules: { tiers } }: ResolvedPolicy): boolean =>
  tiers[0].threshold > 3 && (count !== 'success' || tiers.every(({ threshold }) => threshold > 2));

function randomPolicy(random: (below: number) => number, name: string): ResolvedPolicy {
  const between = (low: number, high: number): number => low + random(high - low + 1);
  const count = (['failure', 'success', 'attempt', 'attempt'] as const)[random(4)] as CountedCalls;
  const least = count === 'success' ? 2 : 1;
  const windowMs = between(100, 5_000);
  const common = { name, count } as const;
  if (random(5) === 0)
    return resolvePolicy(
      {
        name,
        algorithm: 'fixed-window',
        limit: between(2, 6),
        windowMs,
        ...(random(2) > 0 ? { blockMs: between(50, 4_000) } : {}),
      },
      { isStatic: random(2) === 0 },
    );
  if (random(4) === 0)
    return resolvePolicy({ ...common, limit: between(2, 6), windowMs }, { isStatic: random(2) === 0 });
  const temp = { windowMs, threshold: between(least, 6), blockMs: between(50, 4_000) };
  const long = {
    windowMs: between(windowMs, 30_000),
    threshold: between(2, 14),
    blockMs: between(50, 15_000),
  };
  const escalation = {
    factor: between(2, 6) / 2,
    maxBlockMs: between(15_000, 20_000),
    strikeTtlMs: between(30_000, 60_000),
  };
  const policy: LimitPolicy = {
    ...common,
    temp,
    ...(random(3) > 0 ? { long } : {}),
    ...(random(2) > 0 ? { escalation } : {}),
  };
  return resolvePolicy(policy, { isStatic: random(2) === 0 });
}

/** Mostly a little forward; often exactly as far as was said to wait, or a millisecond beside it; sometimes back. */
function nextMove(random: (below: number) => number, lastWaitMs: number): number {
  const dice = random(20);
  if (dice < 4) return lastWaitMs;
  if (dice < 6) return Math.max(0, lastWaitMs + random(3) - 1);
  if (dice < 8) return random(20_000);
  if (dice < 9) return -random(random(4) === 0 ? 100_000 : 2_000);
  if (dice < 11) return 0;
  return random(400);
}

/** What is over by now is gone for good, everywhere, before the clock steps back over its end. */
async function settle(
  cast: Cast,
  memory: LimitBackend,
  model: LimitModel,
  onRedis: () => Promise<void>,
): Promise<void> {
  await onRedis();
  for (const identity of cast.identities) {
    const policy = cast.policies.find(({ name }) => identity.startsWith(`${name}\0`)) as ResolvedPolicy;
    const check = { identity, policy, cost: 1 };
    await memory.peek(check);
    model.peek(check);
  }
}

/** The server learns every script first: one that it does not know is sent twice, out of turn. */
async function warmUp(redis: LimitBackend, { policies, groups }: Cast): Promise<void> {
  for (const policy of policies) {
    const scratch = { policy, identity: 'scratch', cost: 1 };
    await redis.check([scratch], 'scratch1');
    if (policy.count !== 'attempt')
      for (const blocks of [true, false]) await redis.confirm(scratch, 'scratch1', { blocks });
    await redis.renew(scratch, 'scratch1');
    await redis.withdraw(scratch, 'scratch1', true);
    await redis.peek(scratch);
    await redis.forgive(scratch, 1, 'scratch2');
    await redis.block(scratch, 1, '');
    await redis.unblock(scratch);
    await redis.reset(scratch);
  }
  for (const group of groups)
    await redis.check(
      group.map((each) => ({ ...each, identity: `scratch ${each.identity}` })),
      'scratch3',
    );
}

function waitOf(answer: unknown): number | undefined {
  const decision = (Array.isArray(answer) ? answer[0] : answer) as BackendDecision | undefined;
  return decision?.status === 'denied' ? decision.retryAfterMs : undefined;
}

function note(seen: Map<string, number>, asked: readonly PolicySubject[] = [], answer: unknown): void {
  const decisions = (Array.isArray(answer) ? answer : [answer]) as BackendDecision[];
  for (const [i, { policy }] of asked.entries()) {
    const kind = kindOf(decisions[i] as BackendDecision, policy);
    seen.set(kind, (seen.get(kind) ?? 0) + 1);
  }
}

function kindOf(decision: BackendDecision, policy: ResolvedPolicy): string {
  if (decision.status === 'allowed') return 'allowed';
  if (decision.reason === 'busy') return 'busy';
  if (decision.blocked) return decision.scope;
  return isFixedWindow({ policy }) ? 'fixed window' : 'window';
}
