import { type Page, pageOf, type ResolvedPageOptions } from '../../core/page.js';
import { unlessForeign } from '../../redis/redis.errors.js';
import type { RunOptions, ScriptArg, ScriptRunner } from '../../script/script-runner.js';
import type { Script } from '../../script/define-script.js';
import { escapeGlob, walk } from '../../script/walk.js';
import { accountOf, isKeyTag, isNamed, keyTagOf, whoseOf } from '../limit.identity.js';
import {
  type BackendDecision,
  type BlockedPage,
  type CallOptions,
  type ConfirmOptions,
  keepMs,
  type LimitBackend,
  type LimitCheck,
  type LimitRules,
  longestWindowMs,
  MAX_CHECKS,
  type Subject,
} from '../limit.backend.js';
import { LimitError } from '../limit.errors.js';
import type { BlockedKey, BlockTag, FoundAttempts } from '../limit.types.js';
import { blockedScript, liftScript, notedScript, noteScript, whoseScript } from './blocked.scripts.js';
import {
  type CheckMode,
  type CheckScript,
  checkScript,
  type CheckShape,
  modeOf,
  numbersOf,
  PEEK_MODES,
  WINDOWS,
  WITHDRAWN,
} from './check.script.js';
import {
  blockScript,
  forgiveScript,
  renewScript,
  resetScript,
  unblockScript,
  withdrawScript,
} from './limit.scripts.js';

/** From so many scripts on, no more have rules in their text. The server keeps every script that it has seen. */
const MAX_STATIC_SCRIPTS = 256;
/** Longer than any window. */
const ANY_WINDOW_MS = 2 ** 52;
/** How many blocks one step of a walk over all of them finds at most. */
const MOST_ITEMS = 1_000;
/** The name of a key that a block may stand in. */
const BLOCK_NAME = /:(?:block|fixed):\{([\w-]{16})\}$/;
/** A block, and the tag in the names of its keys. */
type FoundBlock = [keyTag: string, item: BlockedKey];

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
    const { cost, policy } = check;
    return this.#decideOne(check, PEEK_MODES[policy.algorithm][cost === 0 ? 'look' : 'peek'], '', options);
  }

  /** @param endsInMs - a fixed window that ends later is another one, and keeps its count */
  forgive(
    subject: Subject,
    amount: number,
    callId: string,
    options: CallOptions = {},
    endsInMs = ANY_WINDOW_MS,
  ): Promise<FoundAttempts> {
    const { penaltiesTtlMs } = subject.policy.rules;
    const args = { ...longestOf(subject), callId, amount, penaltiesTtlMs, endsInMs };
    return this.#run(forgiveScript, this.#keysOf(subject), args, options);
  }

  reset(subject: Subject, options: CallOptions = {}): Promise<FoundAttempts> {
    return this.#run(resetScript, this.#keysOf(subject), longestOf(subject), options);
  }

  async block(subject: Subject, blockMs: number, reason: string, options: CallOptions = {}): Promise<void> {
    const isWindow = subject.policy.algorithm === 'fixed-window' ? '1' : '0';
    const args = { ...longestOf(subject), isWindow, blockMs, reason: encodeURIComponent(reason) };
    await Promise.all([
      this.#run(blockScript, this.#keysOf(subject), args, options),
      this.#noteWhose(subject.identity, blockMs, options),
    ]);
  }

  unblock(subject: Subject, options: CallOptions = {}): Promise<FoundAttempts> {
    return this.#run(unblockScript, this.#keysOf(subject), longestOf(subject), options);
  }

  async note(identity: string, blockMs: number, options: CallOptions = {}): Promise<void> {
    const account = accountOf(identity);
    const keys = account !== undefined && { noted: this.#notesOf(account) };
    await Promise.all([
      this.#noteWhose(identity, blockMs, options),
      keys && this.#run(noteScript, keys, { tag: keyTagOf(identity), blockMs }, options),
    ]);
  }

  #noteWhose(identity: string, blockMs: number, options: CallOptions): Promise<void> {
    const { policy, tag } = whoseOf(identity);
    const args = { owner: `${tag} ${policy}`, blockMs };
    return this.#run(whoseScript, this.#keysOf({ identity }), args, options);
  }

  async lift(account: string, options: CallOptions = {}): Promise<number> {
    const noted = await this.#run(notedScript, { noted: this.#notesOf(account) }, {}, options);
    // A limit that counts by the account alone has it as its identity.
    const tags = [...new Set([...noted, keyTagOf(account)])];
    const lifted = await Promise.all(
      tags.map((tag) => this.#run(liftScript, this.#keysUnder(tag), {}, options)),
    );
    return lifted.reduce((sum, each) => sum + each, 0);
  }

  async blocked({ policy, ...page }: BlockedPage): Promise<Page<BlockedKey>> {
    const { found, cursor } = await this.#walk(page);
    const items = found.map(([, item]) => item).filter((item) => isNamed(item.policy, policy));
    return pageOf(items, cursor);
  }

  /** The hash of a key does not lead to the names of its Redis keys. So all blocks are walked over. */
  async unblockTagged({ tag, policy }: BlockTag, options: CallOptions = {}): Promise<number> {
    const { signal } = options;
    let cursor: string | undefined;
    let unblocked = 0;
    do {
      const page = isKeyTag(tag)
        ? { found: await this.#blocksUnder([tag], signal), cursor: undefined }
        : await this.#walk({ cursor, limit: MOST_ITEMS, signal });
      const meant = page.found.filter(
        ([keyTag, item]) => (item.tag === tag || keyTag === tag) && isNamed(item.policy, policy),
      );
      const ended = meant.map(([keyTag]) =>
        this.#run(unblockScript, this.#keysUnder(keyTag), { shortWindowMs: 0 }, options),
      );
      unblocked += (await Promise.all(ended)).filter(({ blocked }) => blocked).length;
      ({ cursor } = page);
    } while (cursor !== undefined);
    return unblocked;
  }

  /** Finds blocks page by page. Fixed windows are walked over too, as their blocks stand in them. */
  async #walk(page: ResolvedPageOptions): Promise<{ found: FoundBlock[]; cursor: string | undefined }> {
    const pattern = `${escapeGlob(this.prefix)}/abuse_limiter:[bf]*:{*}`;
    const { names, cursor } = await walk(this.runner, pattern, page);
    const tags = names.flatMap((name) => BLOCK_NAME.exec(name)?.[1] ?? []);
    return { found: await this.#blocksUnder(new Set(tags), page.signal), cursor };
  }

  async #blocksUnder(keyTags: Iterable<string>, signal: AbortSignal | undefined): Promise<FoundBlock[]> {
    const found = Array.from(keyTags, async (keyTag): Promise<FoundBlock[]> => {
      const block = await this.runner
        .run(blockedScript, this.#keysUnder(keyTag), {}, { signal })
        .catch(unlessForeign);
      return block ? [[keyTag, { tag: keyTag, ...block }]] : [];
    });
    return (await Promise.all(found)).flat();
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
    { timeoutMs, sparesLoop, signal }: CallOptions,
  ): Promise<BackendDecision[]> {
    const shapes = checks.map(({ policy: { rules } }, i) => ({ mode: modes[i] as CheckMode, rules }));
    const script = this.#scriptOf(
      shapes,
      checks.every(({ policy }) => policy.isStatic),
    );
    const keys: Record<string, string> = {};
    const args: Record<string, ScriptArg> = { callId };
    for (const [i, check] of checks.entries()) {
      const tag = keyTagOf(check.identity);
      for (const [name, part] of script.parts[i] ?? []) keys[name] = this.#key(part, tag);
      args[COSTS[i] as string] = check.cost;
      if (!script.isStatic)
        for (const [name, number] of Object.entries(numbersOf(shapes[i] as CheckShape)))
          args[name + String(i + 1)] = number;
    }
    // The reply came after its deadline, and the call was decided without it. So the call is taken back. A call that was
    // confirmed has happened, so it stays counted.
    const onLate = (decisions: BackendDecision[]): void => {
      const allowed = decisions.every(({ status }) => status === 'allowed');
      for (const [i, check] of checks.entries()) {
        const mode = modes[i] as CheckMode;
        // A log finds the call by its id, counted or not. A fixed window has no ids, so only a call that was counted
        // may be withdrawn.
        if (WITHDRAWN.has(mode) || (WINDOWS.has(mode) && allowed))
          this.#takeBack(check, callId, decisions[i] as BackendDecision).catch(() => {});
      }
    };
    return this.#run(script, keys, args, { timeoutMs, sparesLoop, signal, onLate });
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
      const counted = decisions.slice(0, -1).map(async (earlier, i) => {
        const { cost } = checks[i] as LimitCheck;
        if (cost > 0) await this.#takeBack(checks[i] as LimitCheck, callId, earlier, options);
      });
      await Promise.all(counted);
      const rest = checks.slice(decisions.length);
      return [...decisions, ...(await Promise.all(rest.map((later) => this.peek(later, options))))];
    }
    return decisions;
  }

  /** Takes a call back that was decided about. A fixed window that has ended meanwhile is not the one that counted it. */
  async #takeBack(
    check: LimitCheck,
    callId: string,
    decision: BackendDecision,
    options: CallOptions = {},
  ): Promise<void> {
    if (check.policy.algorithm === 'sliding-log') return this.withdraw(check, callId, false, options);
    if (decision.status === 'allowed')
      await this.forgive(check, check.cost, callId, options, decision.resetMs);
  }

  #scriptOf(shapes: readonly CheckShape[], isStatic: boolean): CheckScript {
    const name = shapes
      .map((shape) => (isStatic ? this.#nameOf(shape) : `${shape.mode} ${shape.rules.tiers.length}`))
      .join(';');
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
    return (names[mode] ??= `${mode} ${JSON.stringify(rules)}`);
  }

  #keysOf({ identity }: Pick<Subject, 'identity'>): Record<KeyPart, string> {
    return this.#keysUnder(keyTagOf(identity));
  }

  #keysUnder(tag: string): Record<KeyPart, string> {
    return {
      attempts: this.#key('attempts', tag),
      window: this.#key('window', tag),
      block: this.#key('block', tag),
      penalties: this.#key('penalties', tag),
      whose: this.#key('whose', tag),
    };
  }

  #key(part: KeyPart, tag: string): string {
    return `${this.prefix}/abuse_limiter:${NAMES[part]}:{${tag}}`;
  }

  #notesOf(account: string): string {
    return `${this.prefix}/abuse_limiter:noted:{${keyTagOf(account)}}`;
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

const NAMES = {
  attempts: 'attempts',
  window: 'fixed',
  block: 'block',
  penalties: 'seq',
  whose: 'whose',
} as const;
type KeyPart = keyof typeof NAMES;
/** The arguments of the costs, by the places of their limits. */
const COSTS = Array.from({ length: MAX_CHECKS }, (_, i) => `cost${i + 1}`);

const longestOf = ({ policy }: Subject): { shortWindowMs: number } => ({
  shortWindowMs: longestWindowMs(policy.rules),
});
