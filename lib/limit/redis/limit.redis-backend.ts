import { hashTag } from '../../redis/redis.keys.js';
import type { RunOptions, ScriptArg, ScriptRunner } from '../../script/script-runner.js';
import type { Script } from '../../script/define-script.js';
import {
  type CountedPolicy,
  type CallOptions,
  type LimitBackend,
  type LimitCheck,
  type BackendDecision,
  type Subject,
} from '../limit.backend.js';
import { LimitError } from '../limit.errors.js';
import { forgiveWindowScript, peekWindowScript } from './fixed-window.scripts.js';
import {
  blockScript,
  forgiveScript,
  resetScript,
  unblockScript,
  withdrawScript,
} from './identity.scripts.js';
import {
  type CheckScript,
  type CheckShape,
  dynamicArgs,
  dynamicCheckScript,
  staticCheckScript,
  type CheckMode,
} from './check.script.js';
import { peekScript } from './peek.script.js';

const TAG_LENGTH = 16;
/** The largest number of scripts that have rules in their text. The server keeps every script that it has seen. */
const MAX_STATIC_SCRIPTS = 256;

type LimitKeys = Readonly<Record<'attempts' | 'window' | 'block' | 'penalties', string>>;

/**
 * Limits on Redis. Each operation is one atomic script, except for a call against several limits on a Cluster. All keys
 * of an identity are in one slot of a Cluster.
 */
export class RedisLimitBackend implements LimitBackend {
  readonly backend = 'redis';
  readonly #staticScripts = new Map<string, CheckScript>();
  readonly #shapeNames = new WeakMap<CountedPolicy, Map<CheckMode, string>>();

  constructor(
    private readonly runner: ScriptRunner,
    private readonly prefix: string,
  ) {}

  check(
    checks: readonly LimitCheck[],
    callId: string,
    options: CallOptions = {},
  ): Promise<BackendDecision[]> {
    return checks.length > 1 && this.runner.client.isCluster
      ? this.#checkOneByOne(checks, callId, options)
      : this.#decide(checks, modeOf, callId, options);
  }

  async confirm(check: LimitCheck, callId: string, options: CallOptions = {}): Promise<BackendDecision> {
    const mode = check.policy.count === 'success' ? 'grant' : 'confirm';
    const [decision] = await this.#decide([check], () => mode, callId, options);
    return decision as BackendDecision;
  }

  withdraw(check: LimitCheck, callId: string, forget: boolean, options: CallOptions = {}): Promise<void> {
    if (check.policy.algorithm === 'fixed-window') return this.forgive(check, check.cost, callId, options);
    const args = { callId, cost: check.cost, forget: forget ? '1' : '0' };
    return this.#run(withdrawScript, this.#keysOf(check), args, options);
  }

  peek(subject: Subject, options: CallOptions = {}): Promise<BackendDecision> {
    const { policy } = subject;
    const script = policy.algorithm === 'fixed-window' ? peekWindowScript : peekScript;
    return this.#run(script, this.#keysOf(subject), { ...policy.rules }, options);
  }

  forgive(subject: Subject, count: number, callId: string, options: CallOptions = {}): Promise<void> {
    const { policy } = subject;
    if (policy.algorithm === 'fixed-window')
      return this.#run(forgiveWindowScript, this.#keysOf(subject), { callId, amount: count }, options);
    const { penaltiesTtlMs } = policy.rules;
    return this.#run(forgiveScript, this.#keysOf(subject), { callId, count, penaltiesTtlMs }, options);
  }

  reset(subject: Subject, options: CallOptions = {}): Promise<void> {
    const { attempts, window, block, penalties } = this.#keysOf(subject);
    const counted = subject.policy.algorithm === 'fixed-window' ? window : attempts;
    return this.#run(resetScript, { counted, block, penalties }, {}, options);
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
    mode: (check: LimitCheck) => CheckMode,
    callId: string,
    options: CallOptions,
  ): Promise<BackendDecision[]> {
    const keys: Record<string, string> = {};
    const args: Record<string, ScriptArg> = { callId };
    const shapes: CheckShape[] = [];
    checks.forEach((check, i) => {
      const n = i + 1;
      const { attempts, window, block, penalties } = this.#keysOf(check);
      keys[`attempts${n}`] = attempts;
      keys[`window${n}`] = window;
      keys[`block${n}`] = block;
      keys[`penalties${n}`] = penalties;
      shapes.push({ mode: mode(check), rules: check.policy.rules });
    });
    const staticScript = this.#staticScript(checks, shapes);
    checks.forEach(({ cost }, i) => {
      if (staticScript) args[`cost${i + 1}`] = cost;
      else Object.assign(args, dynamicArgs(shapes[i] as CheckShape, cost, i + 1));
    });
    // The reply came after its deadline, and the call was decided without it. So the call is taken back.
    const onLate = (decisions: BackendDecision[]): void => {
      // A confirmed success has happened, so it counts.
      if (shapes[0]?.mode === 'grant') return;
      const counted = decisions.every(({ status }) => status === 'allowed');
      for (const check of checks.filter(({ cost }) => cost > 0))
        // A log finds the call by its id, counted or not. A fixed window has no ids, so only a call that was counted
        // may be withdrawn.
        if (counted || check.policy.algorithm !== 'fixed-window')
          this.withdraw(check, callId, false).catch(() => {});
    };
    return this.#run(staticScript ?? dynamicCheckScript(shapes), keys, args, { ...options, onLate });
  }

  /**
   * Checks one limit after the other, where the identities are in several slots of a Cluster and no single script can
   * reach them. If a limit denies the call, the limits that have counted it take it back, and those that come after it
   * are only peeked at.
   */
  async #checkOneByOne(
    checks: readonly LimitCheck[],
    callId: string,
    options: CallOptions,
  ): Promise<BackendDecision[]> {
    const decisions: BackendDecision[] = [];
    for (const check of checks) {
      const [decision] = await this.#decide([check], modeOf, callId, options);
      decisions.push(decision as BackendDecision);
      if (decision?.status !== 'denied') continue;
      const counted = checks.slice(0, decisions.length - 1).filter(({ cost }) => cost > 0);
      await Promise.all(counted.map((earlier) => this.withdraw(earlier, callId, false, options)));
      const rest = checks.slice(decisions.length);
      return [...decisions, ...(await Promise.all(rest.map((later) => this.peek(later, options))))];
    }
    return decisions;
  }

  #staticScript(checks: readonly LimitCheck[], shapes: readonly CheckShape[]): CheckScript | undefined {
    if (!checks.every(({ policy }) => policy.isStatic)) return undefined;
    const name = checks.map(({ policy }, i) => this.#shapeName(policy, shapes[i] as CheckShape)).join(';');
    const known = this.#staticScripts.get(name);
    if (known || this.#staticScripts.size >= MAX_STATIC_SCRIPTS) return known;
    const script = staticCheckScript(shapes);
    this.#staticScripts.set(name, script);
    return script;
  }

  #shapeName(policy: CountedPolicy, { mode, rules }: CheckShape): string {
    let names = this.#shapeNames.get(policy);
    if (!names) this.#shapeNames.set(policy, (names = new Map<CheckMode, string>()));
    let name = names.get(mode);
    if (!name) names.set(mode, (name = `${mode} ${Object.values(rules).join(' ')}`));
    return name;
  }

  #keysOf({ identity }: Subject): LimitKeys {
    const tag = hashTag(identity, TAG_LENGTH);
    const start = `${this.prefix}/abuse_limiter:`;
    return {
      attempts: `${start}attempts:{${tag}}`,
      window: `${start}window:{${tag}}`,
      block: `${start}block:{${tag}}`,
      penalties: `${start}seq:{${tag}}`,
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

const MODES = { attempt: 'attempt', failure: 'enter', success: 'reserve' } as const;

function modeOf({ policy, cost }: LimitCheck): CheckMode {
  if (cost === 0) return 'look';
  return policy.algorithm === 'fixed-window' ? 'window' : MODES[policy.count];
}
