import { boolean, integer, knownOptions } from '../core/validate.js';

/** Options of secrets. */
export interface SecretOptions {
  /** The largest payload, in bytes, 1 to 64 MiB. Default: 1 MiB. */
  maxBytes?: number;
  /**
   * How long the backend remembers that a secret was burned or has expired, in ms, 0 to 2^31 - 1. A burned secret is
   * remembered until its deadline if that is later, but at most a year. The payload is deleted at once. Default: 24
   * hours. With 0 nothing is remembered, so a retry of the last view gets `not_found`.
   */
  tombstoneMs?: number;
  /**
   * Answers `not_found` for every secret that is not shown, whatever the reason. Outsiders then cannot tell a wrong id
   * from an id that was used up. A reader whose own viewId was counted or has failed still gets the reason, and so does
   * the sender by the receipt. Default: false.
   */
  uniform?: boolean;
}

export type ResolvedSecretOptions = Readonly<Required<SecretOptions>>;

const MEBIBYTE = 1_048_576;

/** Checks the `secret` group of the module's options and fills in the defaults. */
export function resolveSecretDefaults(options?: unknown): ResolvedSecretOptions {
  const given = knownOptions('secret', options, ['maxBytes', 'tombstoneMs', 'uniform']);
  return {
    maxBytes: integer('secret.maxBytes', given.maxBytes ?? MEBIBYTE, 1, 64 * MEBIBYTE),
    tombstoneMs: integer('secret.tombstoneMs', given.tombstoneMs ?? 86_400_000),
    uniform: boolean('secret.uniform', given.uniform ?? false),
  };
}
