import type { ScriptRunner } from '../../script/script-runner.js';
import type { CallOptions } from '../../core/validate.js';
import type {
  BurnReply,
  CreateReply,
  PeekReply,
  SecretBackend,
  SettleReply,
  StatusReply,
  StoredSecret,
  View,
  ViewReply,
} from '../secret.backend.js';
import { burnScript } from './burn.script.js';
import { confirmScript, releaseScript } from './settle.scripts.js';
import { createScript } from './create.script.js';
import { peekScript, statusScript } from './read.scripts.js';
import { viewScript } from './view.script.js';

export interface RedisSecretBackendConfig {
  readonly keyPrefix: string;
  readonly tombstoneMs: number;
}

/** Secrets on Redis. Each operation is one atomic script. */
export class RedisSecretBackend implements SecretBackend {
  constructor(
    private readonly runner: ScriptRunner,
    private readonly config: RedisSecretBackendConfig,
  ) {}

  create(secret: StoredSecret, { signal }: CallOptions): Promise<CreateReply> {
    const { tag, proof, payload, text, views, ttlMs, meta, maxFailures, label } = secret;
    const { tombstoneMs } = this.config;
    const keys = this.#keysOf(tag);
    const form = text ? 'text' : 'bytes';
    const args = {
      ...{ proof, bytes: payload, form, views: views ?? -1, ttlMs: ttlMs ?? 0, meta },
      ...{ maxFailures: maxFailures ?? 0, secretLabel: label, tombstoneMs },
    };
    // Burns a secret whose `create()` has rejected although the secret is or may be stored. Its caller got no receipt and
    // passes on no link, so nobody would open it, and without a deadline it would stay for ever.
    const undo = (): void => {
      const burned = (): Promise<unknown> =>
        this.runner.run(burnScript, keys, { proof, burnId: proof, tombstoneMs: 0 });
      this.runner
        .ready()
        .then(burned)
        .catch(() => {});
    };
    return this.runner.run(createScript, keys, args, { signal, undo });
  }

  view({ tag, ...view }: View, { signal }: CallOptions): Promise<ViewReply> {
    const { tombstoneMs } = this.config;
    return this.runner.run(viewScript, this.#keysOf(tag), { ...view, tombstoneMs }, { signal });
  }

  peek(tag: string, { signal }: CallOptions): Promise<PeekReply> {
    return this.runner.run(peekScript, this.#keysOf(tag), {}, { signal });
  }

  burn(
    { tag, proof = '', burnId }: { tag: string; proof?: string; burnId: string },
    { signal }: CallOptions,
  ): Promise<BurnReply> {
    const { tombstoneMs } = this.config;
    return this.runner.run(burnScript, this.#keysOf(tag), { proof, burnId, tombstoneMs }, { signal });
  }

  status({ tag, proof }: { tag: string; proof: string }, { signal }: CallOptions): Promise<StatusReply> {
    return this.runner.run(statusScript, this.#keysOf(tag), { proof }, { signal });
  }

  confirm({ tag, viewTag }: { tag: string; viewTag: string }, { signal }: CallOptions): Promise<SettleReply> {
    const { tombstoneMs } = this.config;
    return this.runner.run(confirmScript, this.#keysOf(tag), { viewTag, tombstoneMs }, { signal });
  }

  release({ tag, viewTag }: { tag: string; viewTag: string }, { signal }: CallOptions): Promise<SettleReply> {
    const { tombstoneMs } = this.config;
    return this.runner.run(releaseScript, this.#keysOf(tag), { viewTag, tombstoneMs }, { signal });
  }

  #keysOf(tag: string): { content: string; record: string } {
    const content = `${this.config.keyPrefix}/secret:{${tag}}`;
    return { content, record: `${content}:record` };
  }
}
