import { hashTag } from '../redis/redis.keys.js';
import type { RunOptions, ScriptArg, ScriptRunner } from '../script/script-runner.js';
import type { Script } from '../script/define-script.js';
import type { CallOptions, LimitBackend, LimitCheck, LimitOutcome, Subject } from './limit.backend.js';
import { LimitError } from './limit.errors.js';
import { isUncounted } from './limit.per-call.js';
import { isFixedWindow, type ResolvedPolicy } from './limit.policy.js';
import { forgiveWindowScript, peekWindowScript } from './fixed-window.scripts.js';
import {
  blockScript,
  type CheckScript,
  type DecisionShape,
  dynamicArgs,
  dynamicCheckScript,
  fixedCheckScript,
  forgiveScript,
  peekScript,
  resetScript,
  type Stage,
  unblockScript,
  withdrawScript,
} from './limit.scripts.js';

const TAG_LENGTH = 16;
/** More scripts with rules in their text than this are not made: the server keeps every one of them. */
const MAX_FIXED_SCRIPTS = 256;

type LimitKeys = Readonly<Record<'attempts' | 'window' | 'block' | 'seq', string>>;

/** Limits on Redis: each operation one atomic script (seed 003), all keys of an identity in one slot. */
export class RedisLimitBackend implements LimitBackend {
  readonly backend = 'redis';
  readonly #fixedScripts = new Map<string, CheckScript>();
  readonly #shapeNames = new WeakMap<ResolvedPolicy, Map<Stage, string>>();

  constructor(
    private readonly runner: ScriptRunner,
    private readonly prefix: string,
  ) {}

  check(checks: readonly LimitCheck[], callId: string, options: CallOptions = {}): Promise<LimitOutcome[]> {
    return checks.length > 1 && this.runner.client.isCluster
      ? this.#checkOneByOne(checks, callId, options)
      : this.#decide(checks, stageOf, callId, options);
  }

  async confirm(check: LimitCheck, callId: string, options: CallOptions = {}): Promise<LimitOutcome> {
    const stage = check.policy.count === 'success' ? 'grant' : 'confirm';
    const [outcome] = await this.#decide([check], () => stage, callId, options);
    return outcome as LimitOutcome;
  }

  withdraw(check: LimitCheck, callId: string, forget: boolean, options: CallOptions = {}): Promise<void> {
    if (isFixedWindow(check.policy)) return this.forgive(check, check.cost, callId, options);
    const args = { callId, cost: check.cost, forget: forget ? '1' : '0' };
    return this.#run(withdrawScript, this.#keysOf(check), args, options);
  }

  peek(subject: Subject, options: CallOptions = {}): Promise<LimitOutcome> {
    const { policy } = subject;
    const script = isFixedWindow(policy) ? peekWindowScript : peekScript;
    return this.#run(script, this.#keysOf(subject), { ...policy.rules }, options);
  }

  forgive(subject: Subject, count: number, callId: string, options: CallOptions = {}): Promise<void> {
    const { policy } = subject;
    if (isFixedWindow(policy))
      return this.#run(forgiveWindowScript, this.#keysOf(subject), { callId, amount: count }, options);
    const { recordTtlMs } = policy.rules;
    return this.#run(forgiveScript, this.#keysOf(subject), { callId, count, recordTtlMs }, options);
  }

  reset(subject: Subject, options: CallOptions = {}): Promise<void> {
    const { attempts, window, block, seq } = this.#keysOf(subject);
    const counted = isFixedWindow(subject.policy) ? window : attempts;
    return this.#run(resetScript, { counted, block, seq }, {}, options);
  }

  block(subject: Subject, blockMs: number, reason: string, options: CallOptions = {}): Promise<void> {
    const args = { blockMs, reason: encodeURIComponent(reason) };
    return this.#run(blockScript, this.#keysOf(subject), args, options);
  }

  unblock(subject: Subject, options: CallOptions = {}): Promise<void> {
    return this.#run(unblockScript, this.#keysOf(subject), {}, options);
  }

  #decide(
    checks: readonly LimitCheck[],
    stage: (check: LimitCheck) => Stage,
    callId: string,
    options: CallOptions,
  ): Promise<LimitOutcome[]> {
    const keys: Record<string, string> = {};
    const args: Record<string, ScriptArg> = { callId };
    const shapes: DecisionShape[] = [];
    checks.forEach((check, i) => {
      const n = i + 1;
      const { attempts, window, block, seq } = this.#keysOf(check);
      keys[`attempts${n}`] = attempts;
      keys[`window${n}`] = window;
      keys[`block${n}`] = block;
      keys[`seq${n}`] = seq;
      shapes.push({ stage: stage(check), rules: check.policy.rules });
    });
    const fixed = this.#fixedScript(checks, shapes);
    checks.forEach(({ cost }, i) => {
      if (fixed) args[`cost${i + 1}`] = cost;
      else Object.assign(args, dynamicArgs(shapes[i] as DecisionShape, cost, i + 1));
    });
    // A call whose caller was told that nobody answered must not count from later on.
    const onLate = (outcomes: LimitOutcome[]): void => {
      // Except a success: what it counts has been made.
      if (shapes[0]?.stage === 'grant') return;
      const counted = outcomes.every(({ status }) => status === 'allowed');
      for (const check of checks.filter((each) => !isUncounted(each)))
        // A log knows by its id whether it has counted the call, a window does not.
        if (counted || !isFixedWindow(check.policy)) this.withdraw(check, callId, false).catch(() => {});
    };
    return this.#run(fixed ?? dynamicCheckScript(shapes), keys, args, { ...options, onLate });
  }

  /** On a Cluster the identities live in several slots: one script cannot reach them, so a denial takes back what was counted. */
  async #checkOneByOne(
    checks: readonly LimitCheck[],
    callId: string,
    options: CallOptions,
  ): Promise<LimitOutcome[]> {
    const outcomes: LimitOutcome[] = [];
    for (const check of checks) {
      const [outcome] = await this.#decide([check], stageOf, callId, options);
      outcomes.push(outcome as LimitOutcome);
      if (outcome?.status !== 'denied') continue;
      const counted = checks.slice(0, outcomes.length - 1).filter((each) => !isUncounted(each));
      await Promise.all(counted.map((earlier) => this.withdraw(earlier, callId, false, options)));
      const rest = checks.slice(outcomes.length);
      return [...outcomes, ...(await Promise.all(rest.map((later) => this.peek(later, options))))];
    }
    return outcomes;
  }

  #fixedScript(checks: readonly LimitCheck[], shapes: readonly DecisionShape[]): CheckScript | undefined {
    if (!checks.every(({ policy }) => policy.fixed)) return undefined;
    const name = checks.map(({ policy }, i) => this.#shapeName(policy, shapes[i] as DecisionShape)).join(';');
    const known = this.#fixedScripts.get(name);
    if (known || this.#fixedScripts.size >= MAX_FIXED_SCRIPTS) return known;
    const script = fixedCheckScript(shapes);
    this.#fixedScripts.set(name, script);
    return script;
  }

  #shapeName(policy: ResolvedPolicy, { stage, rules }: DecisionShape): string {
    let names = this.#shapeNames.get(policy);
    if (!names) this.#shapeNames.set(policy, (names = new Map<Stage, string>()));
    let name = names.get(stage);
    if (!name) names.set(stage, (name = `${stage} ${Object.values(rules).join(' ')}`));
    return name;
  }

  #keysOf({ identity }: Subject): LimitKeys {
    const tag = hashTag(identity, TAG_LENGTH);
    const start = `${this.prefix}/abuse_limiter:`;
    return {
      attempts: `${start}attempts:{${tag}}`,
      window: `${start}window:{${tag}}`,
      block: `${start}block:{${tag}}`,
      seq: `${start}seq:{${tag}}`,
    };
  }

  #run<Key extends string, Arg extends string, Result>(
    script: Script<Key, Arg, Result>,
    keys: Readonly<Record<Key, string>>,
    args: Readonly<Record<Arg, ScriptArg>>,
    options: RunOptions<Result>,
  ): Promise<Result> {
    return this.runner.run(script, keys, args, options).catch((fault: unknown) => {
      throw LimitError.from(fault);
    });
  }
}

const STAGES = { attempt: 'attempt', failure: 'enter', success: 'reserve' } as const;

function stageOf(check: LimitCheck): Stage {
  if (isUncounted(check)) return 'look';
  return isFixedWindow(check.policy) ? 'window' : STAGES[check.policy.count];
}
