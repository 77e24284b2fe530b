import type { CallOptions } from '../../core/validate.js';
import type { Script, ScriptArg } from '../../script/define-script.js';
import type { RunOptions, ScriptRunner } from '../../script/script-runner.js';
import type {
  Burn,
  BurnReply,
  CreateReply,
  PeekReply,
  SecretBackend,
  SettleReply,
  StatusReply,
  StoredSecret,
  TakenView,
  View,
  ViewReply,
} from '../secret.backend.js';
import type { Receipt } from '../secret.validate.js';
import { burnScript } from './burn.script.js';
import { createScript } from './create.script.js';
import { peekScript, statusScript } from './read.scripts.js';
import { confirmScript, releaseScript } from './settle.scripts.js';
import { viewScript } from './view.script.js';

/** Secrets on Redis. Each operation is one atomic script. */
export class RedisSecretBackend implements SecretBackend {
  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: { readonly keyPrefix: string; readonly tombstoneMs: number },
  ) {}

  create(secret: StoredSecret, { signal }: CallOptions): Promise<CreateReply> {
    const { tag, proof, payload, text, views, ttlMs, meta, maxFailures, label } = secret;
    const args = {
      proof,
      bytes: payload,
      form: text ? 'text' : 'bytes',
      views: views ?? -1,
      ttlMs: ttlMs ?? 0,
      meta,
      maxFailures: maxFailures ?? 0,
      secretLabel: label,
    };
    // Burns a secret whose `create()` has rejected although the secret is or may be stored. Its caller got no receipt
    // and passes on no link, so nobody would open it, and without a deadline it would stay for ever.
    const undo = (): void => {
      this.runner
        .ready()
        .then(() => this.#run(burnScript, tag, { proof, burnId: proof, tombstoneMs: 0 }, {}))
        .catch(() => {});
    };
    return this.#run(createScript, tag, args, { signal, undo });
  }

  view({ tag, ...view }: View, options: CallOptions): Promise<ViewReply> {
    return this.#run(viewScript, tag, view, options);
  }

  peek(tag: string, options: CallOptions): Promise<PeekReply> {
    return this.#run(peekScript, tag, {}, options);
  }

  burn({ tag, proof = '', burnId }: Burn, options: CallOptions): Promise<BurnReply> {
    return this.#run(burnScript, tag, { proof, burnId }, options);
  }

  status({ tag, proof }: Receipt, options: CallOptions): Promise<StatusReply> {
    return this.#run(statusScript, tag, { proof }, options);
  }

  confirm({ tag, viewTag }: TakenView, options: CallOptions): Promise<SettleReply> {
    return this.#run(confirmScript, tag, { viewTag }, options);
  }

  release({ tag, viewTag }: TakenView, options: CallOptions): Promise<SettleReply> {
    return this.#run(releaseScript, tag, { viewTag }, options);
  }

  #run<Arg extends string, Result>(
    script: Script<'content' | 'record', Arg, Result>,
    tag: string,
    args: Readonly<Record<Exclude<Arg, 'tombstoneMs'>, ScriptArg>> & { readonly tombstoneMs?: number },
    { signal, undo }: Pick<RunOptions<Result>, 'signal' | 'undo'>,
  ): Promise<Result> {
    const { keyPrefix, tombstoneMs } = this.config;
    const content = `${keyPrefix}/secret:{${tag}}`;
    const all = { tombstoneMs, ...args } as Record<Arg, ScriptArg>;
    return this.runner.run(script, { content, record: `${content}:record` }, all, { signal, undo });
  }
}
