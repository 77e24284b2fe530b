import type { ExecutionContext } from '@nestjs/common';
import {
  among,
  between,
  optionalFunction,
  OptionTable,
  type Resolved,
  type RowsOf,
} from '../core/option-table.js';
import { duration, invalidOption } from '../core/validate.js';
import type { AfterCrash, OnceCallOptions } from './once.types.js';

/** Who sends a call: the text or number of one id, or several that name the caller together, such as tenant and user. */
export type OnceCaller = string | number | readonly (string | number)[];

/** Options of calls that are answered once. */
export interface OnceModuleOptions {
  /** How long a result is kept, in ms, 1,000 to 2^31 - 1. Default: 24 hours. */
  keepMs?: number;
  /** How long a key stays taken if its process dies, in ms, 1,000 to 2^31 - 1. Default: 30 seconds. */
  leaseMs?: number;
  /** The largest result that is kept, in bytes, 1 to 64 MiB. A call with a larger one is done without a result. Default: 256 KiB. */
  maxBytes?: number;
  /** See `OnceOptions.afterCrash`. Default: `'run'`. */
  afterCrash?: AfterCrash;
  /** The header that has the key of a call. Default: `'idempotency-key'`. */
  header?: string;
  /**
   * Returns whose key it is, so that nobody gets the answer of a stranger. Default: the id of `request.user`, as `limit.user`
   * finds it.
   */
  user?: (context: ExecutionContext) => OnceCaller | undefined | Promise<OnceCaller | undefined>;
  /**
   * `'public'`: keys of the header need no caller. Whoever knows a key and its request then gets the answer. Default:
   * `'caller'`.
   */
  scope?: 'caller' | 'public';
  /**
   * Turns what is kept into bytes, for example to encrypt it. It gets the result of a method, or the answer of a route as
   * `{ status, headers, body }` with the body in base64. Default: JSON, in clear.
   */
  encode?: (kept: unknown) => string | Uint8Array | Promise<string | Uint8Array>;
  /** Turns the bytes of `encode` back. */
  decode?: (bytes: Buffer) => unknown;
  /** See `OnceOptions.onError`. Default: `'refuse'`. */
  onError?: 'refuse' | 'run';
}

const KIBIBYTE = 1_024;

/** What a call may set too. */
const SHARED = {
  keepMs: { check: between(1_000), usual: 86_400_000 },
  leaseMs: { check: between(1_000), usual: 30_000 },
  afterCrash: { check: among('run', 'refuse'), usual: 'run' },
  onError: { check: among('refuse', 'run'), usual: 'refuse' },
} as const;

const OPTIONS = new OptionTable({
  ...SHARED,
  maxBytes: { check: between(1, 65_536 * KIBIBYTE), usual: 256 * KIBIBYTE },
  header: { check: headerName, usual: 'idempotency-key' },
  scope: { check: among('caller', 'public'), usual: 'caller' },
  user: { check: optionalFunction<OnceModuleOptions['user']> },
  encode: { check: optionalFunction<OnceModuleOptions['encode']> },
  decode: { check: optionalFunction<OnceModuleOptions['decode']> },
} satisfies RowsOf<OnceModuleOptions>);

export const ONCE_CALL = new OptionTable({
  ...SHARED,
  maxRunMs: { check: duration, usual: Infinity },
  waitMs: { check: between(0), usual: 0 },
  keep: { check: optionalFunction<OnceCallOptions['keep']> },
} satisfies RowsOf<OnceCallOptions>);

export type ResolvedOnceOptions = Resolved<typeof OPTIONS>;
export type ResolvedOnceCall = Resolved<typeof ONCE_CALL>;

/** Checks the `once` group of the module's options and fills in the defaults. */
export function resolveOnceDefaults(options?: unknown): ResolvedOnceOptions {
  const resolved = OPTIONS.resolve('once', options);
  const { encode, decode } = resolved;
  if ((encode === undefined) !== (decode === undefined))
    throw invalidOption('once.encode', 'given together with once.decode', encode ?? decode);
  return resolved;
}

/** What a call is, after its options were checked. */
export interface OnceCall {
  readonly key: string;
  readonly print: string;
  readonly signal: AbortSignal | undefined;
  readonly options: ResolvedOnceCall;
}

/** The options of a call that says none. */
export const usualCall = ({
  keepMs,
  leaseMs,
  afterCrash,
  onError,
}: ResolvedOnceOptions): ResolvedOnceCall => ({
  ...ONCE_CALL.usual,
  ...{ keepMs, leaseMs, afterCrash, onError },
});

function headerName(name: string, value: unknown): string {
  if (typeof value === 'string' && /^[\w!#$%&'*+.^`|~-]{1,100}$/.test(value)) return value.toLowerCase();
  throw invalidOption(name, 'the name of a header', value);
}
