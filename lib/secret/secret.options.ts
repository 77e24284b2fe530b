import { between, OptionTable, type Resolved, type RowsOf } from '../core/option-table.js';
import { boolean } from '../core/validate.js';

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

const MEBIBYTE = 1_048_576;

const OPTIONS = new OptionTable({
  maxBytes: { check: between(1, 64 * MEBIBYTE), usual: MEBIBYTE },
  tombstoneMs: { check: between(0), usual: 86_400_000 },
  uniform: { check: boolean, usual: false },
} satisfies RowsOf<SecretOptions>);

export type ResolvedSecretOptions = Resolved<typeof OPTIONS>;

/** Checks the `secret` group of the module's options and fills in the defaults. */
export const resolveSecretDefaults = (options?: unknown): ResolvedSecretOptions =>
  OPTIONS.resolve('secret', options);
