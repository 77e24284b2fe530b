import { hash } from 'node:crypto';
import type { RunOptions, ScriptArg, ScriptRunner } from '../../script/script-runner.js';
import type { Script } from '../../script/define-script.js';
import {
  type BackendDecision,
  type CallOptions,
  type ConfirmOptions,
  keepMs,
  type LimitBackend,
  type LimitCheck,
  type LimitRules,
  longestWindowMs,
  type Subject,
} from '../limit.backend.js';
import { LimitError } from '../limit.errors.js';
import type { FoundAttempts } from '../limit.types.js';
import { type CheckMode, type CheckScript, checkScript, type CheckShape } from './check.script.js';
import {
  blockScript,
  forgiveScript,
  forgiveWindowScript,
  liftScript,
  notedScript,
  noteScript,
  renewScript,
  resetScript,
  unblockScript,
  withdrawScript,
} from './limit.scripts.js';

const TAG_LENGTH = 16;
/** From so many scripts on, no more have rules in their text. The server keeps every script that it has seen. */
const MAX_STATIC_SCRIPTS = 256;

/**
 * Limits on Redis. Each operation is one atomic script, except for a call against several limits on a Cluster. All keys
 * of an identity are in one slot of a Cluster.
 */
export class RedisLimitBackend implements LimitBackend {
  readonly backend = 'redis';
  /** The scripts of checks, by the modes of their limits, or by modes and rules if they are static. */
  readonly #scripts = new Map<string, CheckScript>();
  readonly #names = new WeakMap<LimitRules, Partial<Record<CheckMode, string>>>();

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
      : this.#decide(checks, checks.map(modeOf), callId, options);
  }

  confirm(
    check: LimitCheck,
    callId: string,
    { blocks = true, ...options }: ConfirmOptions = {},
  ): Promise<BackendDecision> {
    const mode = check.policy.count === 'success' ? 'grant' : 'confirm';
    return this.#decideOne(check, blocks ? mode : 'fill', callId, options);
  }

  renew(check: LimitCheck, callId: string, options: CallOptions = {}): Promise<void> {
    const args = { callId, cost: check.cost, keepMs: keepMs(check.policy.rules) };
    return this.#run(renewScript, this.#keysOf(check), args, options);
  }

  async withdraw(
    check: LimitCheck,
    callId: string,
    forget: boolean,
    options: CallOptions = {},
  ): Promise<void> {
    if (check.policy.algorithm === 'fixed-window')
      return void (await this.forgive(check, check.cost, callId, options));
    const args = { callId, cost: check.cost, forget: forget ? '1' : '0' };
    return this.#run(withdrawScript, this.#keysOf(check), args, options);
  }

  peek(check: LimitCheck, options: CallOptions = {}): Promise<BackendDecision> {
    const isFixed = check.policy.algorithm === 'fixed-window';
    const mode = check.cost === 0 ? 'look' : isFixed ? 'peek-window' : 'peek';
    return this.#decideOne(check, mode, '', options);
  }

  forgive(
    subject: Subject,
    count: number,
    callId: string,
    options: CallOptions = {},
  ): Promise<FoundAttempts> {
    const { algorithm, rules } = subject.policy;
    const args = { callId, withinMs: longestWindowMs(rules) };
    if (algorithm === 'fixed-window')
      return this.#run(forgiveWindowScript, this.#keysOf(subject), { ...args, amount: count }, options);
    const { penaltiesTtlMs } = rules;
    return this.#run(forgiveScript, this.#keysOf(subject), { ...args, count, penaltiesTtlMs }, options);
  }

  reset(subject: Subject, options: CallOptions = {}): Promise<FoundAttempts> {
    return this.#run(resetScript, this.#keysOf(subject), withinOf(subject), options);
  }

  block(subject: Subject, blockMs: number, reason: string, options: CallOptions = {}): Promise<void> {
    const args = { blockMs, reason: encodeURIComponent(reason) };
    return this.#run(blockScript, this.#keysOf(subject), args, options);
  }

  unblock(subject: Subject, options: CallOptions = {}): Promise<FoundAttempts> {
    return this.#run(unblockScript, this.#keysOf(subject), withinOf(subject), options);
  }

  note(identity: string, account: string, blockMs: number, options: CallOptions = {}): Promise<void> {
    const keys = { noted: this.#notesOf(account) };
    return this.#run(noteScript, keys, { tag: tagOf(identity), blockMs }, options);
  }

  async lift(account: string, options: CallOptions = {}): Promise<number> {
    const noted = await this.#run(notedScript, { noted: this.#notesOf(account) }, {}, options);
    // A limit that counts by the account alone has it as its identity.
    const tags = [...new Set([...noted, tagOf(account)])];
    const lifted = await Promise.all(
      tags.map((tag) => this.#run(liftScript, this.#keysUnder(tag), {}, options)),
    );
    return lifted.reduce((sum, each) => sum + each, 0);
  }

  async #decideOne(
    check: LimitCheck,
    mode: CheckMode,
    callId: string,
    options: CallOptions,
  ): Promise<BackendDecision> {
    const [decision] = await this.#decide([check], [mode], callId, options);
    return decision as BackendDecision;
  }

  #decide(
    checks: readonly LimitCheck[],
    modes: readonly CheckMode[],
    callId: string,
    options: CallOptions,
  ): Promise<BackendDecision[]> {
    const script = this.#scriptOf(
      checks.map(({ policy: { rules } }, i) => ({ mode: modes[i] as CheckMode, rules })),
      checks.every(({ policy }) => policy.isStatic),
    );
    const keys: Record<string, string> = {};
    const args: Record<string, ScriptArg> = { callId };
    checks.forEach((check, i) => {
      const n = i + 1;
      const { attempts, window, block, penalties } = this.#keysOf(check);
      keys[`attempts${n}`] = attempts;
      keys[`window${n}`] = window;
      keys[`block${n}`] = block;
      keys[`penalties${n}`] = penalties;
      args[`cost${n}`] = check.cost;
      if (script.isStatic) return;
      for (const [rule, value] of Object.entries<number>({ ...check.policy.rules }))
        args[rule + String(n)] = value;
    });
    // The reply came after its deadline, and the call was decided without it. So the call is taken back. A call that was
    // confirmed has happened, so it stays counted.
    const onLate = (decisions: BackendDecision[]): void => {
      const allowed = decisions.every(({ status }) => status === 'allowed');
      checks.forEach((check, i) => {
        const mode = modes[i] as CheckMode;
        // A log finds the call by its id, counted or not. A fixed window has no ids, so only a call that was counted
        // may be withdrawn.
        if (mode === 'window' ? allowed : WITHDRAWN.has(mode))
          this.withdraw(check, callId, false).catch(() => {});
      });
    };
    return this.#run(script, keys, args, { ...options, onLate });
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
      const decision = await this.#decideOne(check, modeOf(check), callId, options);
      decisions.push(decision);
      if (decision.status === 'allowed') continue;
      const counted = checks.slice(0, decisions.length - 1).filter(({ cost }) => cost > 0);
      await Promise.all(counted.map((earlier) => this.withdraw(earlier, callId, false, options)));
      const rest = checks.slice(decisions.length);
      return [...decisions, ...(await Promise.all(rest.map((later) => this.peek(later, options))))];
    }
    return decisions;
  }

  #scriptOf(shapes: readonly CheckShape[], isStatic: boolean): CheckScript {
    const name = shapes.map((shape) => (isStatic ? this.#nameOf(shape) : shape.mode)).join(';');
    let script = this.#scripts.get(name);
    if (!script) {
      if (isStatic && this.#scripts.size >= MAX_STATIC_SCRIPTS) return this.#scriptOf(shapes, false);
      this.#scripts.set(name, (script = checkScript(shapes, isStatic)));
    }
    return script;
  }

  #nameOf({ mode, rules }: CheckShape): string {
    let names = this.#names.get(rules);
    if (!names) this.#names.set(rules, (names = {}));
    return (names[mode] ??= `${mode} ${Object.values(rules).join(' ')}`);
  }

  #keysOf({ identity, policy }: Subject): Record<KeyName, string> {
    return this.#keysUnder(tagOf(identity), policy.algorithm === 'fixed-window');
  }

  #keysUnder(tag: string, isFixedWindow = false): Record<KeyName, string> {
    const start = `${this.prefix}/abuse_limiter:`;
    const attempts = `${start}attempts:{${tag}}`;
    const window = `${start}window:{${tag}}`;
    return {
      attempts,
      window,
      counted: isFixedWindow ? window : attempts,
      block: `${start}block:{${tag}}`,
      penalties: `${start}seq:{${tag}}`,
    };
  }

  #notesOf(account: string): string {
    return `${this.prefix}/abuse_limiter:noted:{${tagOf(account)}}`;
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

const tagOf = (identity: string): string => hash('sha256', identity, 'base64url').slice(0, TAG_LENGTH);

type KeyName = 'attempts' | 'window' | 'counted' | 'block' | 'penalties';

const withinOf = ({ policy }: Subject): { withinMs: number } => ({
  withinMs: longestWindowMs(policy.rules),
});

/** The modes in which a late call is taken back, whatever was decided. */
const WITHDRAWN: ReadonlySet<CheckMode> = new Set(['attempt', 'enter', 'reserve']);

const MODES = { attempt: 'attempt', failure: 'enter', success: 'reserve' } as const;

function modeOf({ policy, cost }: LimitCheck): CheckMode {
  if (cost === 0) return 'look';
  return policy.algorithm === 'fixed-window' ? 'window' : MODES[policy.count];
}
