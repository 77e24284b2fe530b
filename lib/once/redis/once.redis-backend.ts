import { type Page, pageOf, type ResolvedPageOptions } from '../../core/page.js';
import type { CallOptions } from '../../core/validate.js';
import { unlessForeign } from '../../redis/redis.errors.js';
import { hashTag } from '../../redis/redis.keys.js';
import type { ProcessChannel } from '../../script/process-channel.js';
import type { Script, ScriptArg } from '../../script/define-script.js';
import type { RunOptions, ScriptRunner } from '../../script/script-runner.js';
import { escapeGlob, walk } from '../../script/walk.js';
import { EndListeners } from '../end-listeners.js';
import type { Claim, Claimed, ClaimReply, Kept, OnceBackend, OnceEnd } from '../once.backend.js';
import type { ForgetOnceResult, OnceRecord, SettleOnceResult } from '../once.types.js';
import { claimScript } from './claim.script.js';
import { endScript, forgetScript, renewScript, settleScript } from './end.scripts.js';
import { getScript } from './get.script.js';

/** The whole hash, as strangers choose keys. */
const TAG_LENGTH = 43;
/** How often a waiter looks by itself, in ms, while messages reach it, and while they do not. */
const TOLD_POLL_MS = 1_050;
const UNTOLD_POLL_MS = 200;
const NOTHING: Kept = { form: 'none', bytes: '' };

/** Runs on Redis. Each operation is one atomic script on one key. */
export class RedisOnceBackend implements OnceBackend {
  readonly #listeners = new EndListeners();

  constructor(
    private readonly runner: ScriptRunner,
    private readonly keyPrefix: string,
    private readonly channel: ProcessChannel,
  ) {
    channel.join({
      onMessage: (tag) => this.#listeners.tell(tag),
      isNeeded: () => this.#listeners.size > 0,
    });
  }

  claim(claim: Claim, { signal }: CallOptions): Promise<ClaimReply> {
    const { key: onceKey, nonce: claimNonce, print: claimPrint, leaseMs, keepMs } = claim;
    const { afterCrash, waiter, waitMs } = claim;
    const callProcess = this.channel.process;
    const args = {
      onceKey,
      claimNonce,
      claimPrint,
      leaseMs,
      keepMs,
      afterCrash,
      waiter,
      callProcess,
      waitMs,
    };
    // A claim that has rejected runs no body. Without this its key would stay taken for the whole lease.
    const undo = (): void => {
      this.runner
        .ready()
        .then(() => this.end(claim, 'nothing'))
        .catch(() => {});
    };
    return this.#run(claimScript, claim, args, { signal, undo });
  }

  renew(run: Claimed, leaseMs: number): Promise<boolean> {
    return this.#run(renewScript, run, { runNonce: run.nonce, leaseMs }, { priority: 'renewal' });
  }

  end(run: Claimed, end: OnceEnd): Promise<number> {
    const isKept = typeof end === 'object';
    const { form, bytes } = isKept ? end.kept : NOTHING;
    const how = isKept ? 'kept' : end;
    const args = { runNonce: run.nonce, how, newForm: form, result: bytes, channel: this.channel.name };
    return this.#run(endScript, run, args);
  }

  get(key: string, { signal }: CallOptions): Promise<OnceRecord | null> {
    return this.#run(getScript, { key }, {}, { signal });
  }

  async list(page: ResolvedPageOptions): Promise<Page<OnceRecord>> {
    const { names, cursor } = await walk(this.runner, `${escapeGlob(this.keyPrefix)}/once:{*}`, page);
    const { signal } = page;
    // A record that cannot be read stops nobody: `get()` says what is wrong with it.
    const found = names.map((record) =>
      this.runner.run(getScript, { record }, {}, { signal }).catch(unlessForeign),
    );
    return pageOf(
      (await Promise.all(found)).filter((each) => each !== null),
      cursor,
    );
  }

  settle(run: Claimed, { form, bytes }: Kept, { signal }: CallOptions): Promise<SettleOnceResult> {
    const args = { settleNonce: run.nonce, newForm: form, result: bytes, channel: this.channel.name };
    return this.#run(settleScript, run, args, { signal });
  }

  forget(key: string, force: boolean, { signal }: CallOptions): Promise<ForgetOnceResult> {
    const args = { force: force ? 1 : 0, channel: this.channel.name };
    return this.#run(forgetScript, { key }, args, { signal });
  }

  onEnd(key: string, listener: () => void): () => void {
    const remove = this.#listeners.add(tagOf(key), listener);
    this.channel.rely();
    return remove;
  }

  get pollMs(): number {
    return this.channel.isHeard ? TOLD_POLL_MS : UNTOLD_POLL_MS;
  }

  #run<Arg extends string, Result>(
    script: Script<'record', Arg, Result>,
    run: Omit<Claimed, 'nonce'>,
    args: Readonly<Record<Arg, ScriptArg>>,
    options?: RunOptions<Result>,
  ): Promise<Result> {
    run.record ??= `${this.keyPrefix}/once:{${tagOf(run.key)}}`;
    return this.runner.run(script, run as { record: string }, args, options);
  }
}

const tagOf = (key: string): string => hashTag(key, TAG_LENGTH);
