import { boolean, integer, knownOptions } from '../validate.js';

/** How secrets are kept. */
export interface SecretOptions {
  /** The largest payload, in bytes, 1 to 64 MiB. Default: 1 MiB. */
  maxBytes?: number;
  /**
   * How long it is remembered that a secret was burned or has expired, in ms, 0 to 2^31 - 1; the payload itself
   * is gone at once. Default: 24 hours. 0: not at all, and a retry of the last view finds nothing.
   */
  tombstoneMs?: number;
  /**
   * Answer `not_found` for every secret that is not shown, whatever the reason: an outsider then cannot tell a
   * wrong id from one that was there. The receipt still tells the sender. Default: false.
   */
  uniform?: boolean;
}

export type ResolvedSecretOptions = Readonly<Required<SecretOptions>>;

const MEBIBYTE = 1_048_576;

/** Fills the defaults with what `options` says. */
export function resolveSecretDefaults(options?: unknown): ResolvedSecretOptions {
  const given = knownOptions('secret', options, ['maxBytes', 'tombstoneMs', 'uniform']);
  return {
    maxBytes: integer('secret.maxBytes', given.maxBytes ?? MEBIBYTE, 1, 64 * MEBIBYTE),
    tombstoneMs: integer('secret.tombstoneMs', given.tombstoneMs ?? 86_400_000),
    uniform: boolean('secret.uniform', given.uniform ?? false),
  };
}
