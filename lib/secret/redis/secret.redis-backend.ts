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
    private readonly keyPrefix: string,
  ) {}

  create(secret: StoredSecret, { signal }: CallOptions): Promise<CreateReply> {
    const { tag, proof, payload, text, views, ttlMs, meta, maxFailures, label, tombstoneMs } = secret;
    const args = {
      proof,
      bytes: payload,
      form: text ? 'text' : 'bytes',
      views: views ?? -1,
      ttlMs: ttlMs ?? 0,
      meta,
      maxFailures: maxFailures ?? 0,
      secretLabel: label,
      tombstoneMs,
    };
    // Burns a secret whose `create()` has rejected although the secret is or may be stored. Its caller got no receipt
    // and passes on no link, so nobody would open it, and without a deadline it would stay for ever.
    const undo = (): void => {
      this.runner
        .ready()
        .then(() => this.#run(burnScript, tag, { proof, burnId: proof, forget: 1 }, {}))
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
    return this.#run(burnScript, tag, { proof, burnId, forget: 0 }, options);
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
    args: Readonly<Record<Arg, ScriptArg>>,
    { signal, undo }: Pick<RunOptions<Result>, 'signal' | 'undo'>,
  ): Promise<Result> {
    const content = `${this.keyPrefix}/secret:{${tag}}`;
    return this.runner.run(script, { content, record: `${content}:record` }, args, { signal, undo });
  }
}
