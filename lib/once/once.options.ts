import type { ExecutionContext } from '@nestjs/common';
import { integer, invalidOption, knownOptions, oneOf } from '../core/validate.js';
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

export type ResolvedOnceOptions = Readonly<
  Required<Omit<OnceModuleOptions, 'user' | 'encode' | 'decode'>> &
    Pick<OnceModuleOptions, 'user' | 'encode' | 'decode'>
>;

const KIBIBYTE = 1_024;
const SHORTEST_MS = 1_000;
const AFTER_CRASH = ['run', 'refuse'] as const;
const ON_ERROR = ['refuse', 'run'] as const;
const FUNCTIONS = ['user', 'encode', 'decode'] as const;
const CALL = ['keepMs', 'leaseMs', 'maxRunMs', 'waitMs', 'afterCrash', 'keep', 'onError'] as const;

/** Checks the `once` group of the module's options and fills in the defaults. */
export function resolveOnceDefaults(options?: unknown): ResolvedOnceOptions {
  const given = knownOptions('once', options, [
    ...['keepMs', 'leaseMs', 'maxBytes', 'afterCrash', 'header', 'scope', 'onError'],
    ...FUNCTIONS,
  ]);
  for (const name of FUNCTIONS) optionalFunction(`once.${name}`, given[name]);
  if ((given.encode === undefined) !== (given.decode === undefined))
    throw invalidOption('once.encode', 'given together with once.decode', given.encode ?? given.decode);
  const { user, encode, decode } = given as Pick<OnceModuleOptions, 'user' | 'encode' | 'decode'>;
  return {
    keepMs: integer('once.keepMs', given.keepMs ?? 86_400_000, SHORTEST_MS),
    leaseMs: integer('once.leaseMs', given.leaseMs ?? 30_000, SHORTEST_MS),
    maxBytes: integer('once.maxBytes', given.maxBytes ?? 256 * KIBIBYTE, 1, 65_536 * KIBIBYTE),
    afterCrash: oneOf('once.afterCrash', given.afterCrash ?? 'run', AFTER_CRASH),
    header: headerName(given.header ?? 'idempotency-key'),
    scope: oneOf('once.scope', given.scope ?? 'caller', ['caller', 'public']),
    onError: oneOf('once.onError', given.onError ?? 'refuse', ON_ERROR),
    ...{ user, encode, decode },
  };
}

/** The options of a call with all defaults. */
export interface ResolvedOnceCall extends Pick<
  ResolvedOnceOptions,
  'keepMs' | 'leaseMs' | 'afterCrash' | 'onError'
> {
  readonly maxRunMs: number;
  readonly waitMs: number;
  readonly keep: OnceCallOptions['keep'];
}

/** What a call is, after its options were checked. */
export interface OnceCall {
  readonly key: string;
  readonly print: string;
  readonly signal: AbortSignal | undefined;
  readonly options: ResolvedOnceCall;
}

/** @param name - how errors name the options: `options`, or the decorator and its method */
export function resolveOnceCall(
  options: unknown,
  defaults: ResolvedOnceOptions,
  others: readonly string[],
  name = 'options',
): ResolvedOnceCall {
  const given = knownOptions<string>(name, options, [...CALL, ...others]);
  optionalFunction(`${name}.keep`, given.keep);
  return {
    keepMs: integer(`${name}.keepMs`, given.keepMs ?? defaults.keepMs, SHORTEST_MS),
    leaseMs: integer(`${name}.leaseMs`, given.leaseMs ?? defaults.leaseMs, SHORTEST_MS),
    maxRunMs: given.maxRunMs === undefined ? Infinity : integer(`${name}.maxRunMs`, given.maxRunMs, 1),
    waitMs: integer(`${name}.waitMs`, given.waitMs ?? 0),
    afterCrash: oneOf(`${name}.afterCrash`, given.afterCrash ?? defaults.afterCrash, AFTER_CRASH),
    keep: given.keep as OnceCallOptions['keep'],
    onError: oneOf(`${name}.onError`, given.onError ?? defaults.onError, ON_ERROR),
  };
}

export function optionalFunction(name: string, value: unknown): void {
  if (value !== undefined && typeof value !== 'function') throw invalidOption(name, 'a function', value);
}

function headerName(value: unknown): string {
  if (typeof value === 'string' && /^[\w!#$%&'*+.^`|~-]{1,100}$/.test(value)) return value.toLowerCase();
  throw invalidOption('once.header', 'the name of a header', value);
}
