import { SyncGuardError } from '../syncguard.errors.js';

const ABORT_NAMES = new Set(['AbortError', 'TimeoutError']);
/** Of clients of language models, whose errors have no name of their own. */
const ABORT_CLASSES = new Set(['APIUserAbortError', 'APIConnectionTimeoutError']);
const ABORT_CODES = new Set([
  'ABORT_ERR',
  'ERR_CANCELED',
  'ECONNABORTED',
  'ERR_STREAM_PREMATURE_CLOSE',
  'UND_ERR_ABORTED',
  'UND_ERR_HEADERS_TIMEOUT',
  'UND_ERR_BODY_TIMEOUT',
]);
/** Nobody was reached, so nothing was bought. */
const NOT_CONNECTED = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'UND_ERR_CONNECT_TIMEOUT']);

const DEEPEST_CAUSE = 8;
const MOST_PARTS = 32;

/**
 * Whether a body ended because its caller hung up or lost patience: what it had asked for may have been delivered, and
 * is paid for.
 *
 * @param args - where a signal may be that was aborted: a provider throws whatever its reason is
 */
export function isHangUp(error: unknown, args: readonly unknown[]): boolean {
  const chain = causesOf(error);
  if (chain.some(boughtNothing)) return false;
  return chain.some((each) => isAbort(each) || partsOf(each).some(isPartAbort)) || hasAborted(args);
}

/** Whether a signal among these arguments is aborted. */
export const hasAborted = (args: readonly unknown[]): boolean => args.some(holdsAborted);

function causesOf(error: unknown): unknown[] {
  const chain: unknown[] = [];
  for (let each = error; each && chain.length < DEEPEST_CAUSE; each = read(each, 'cause')) chain.push(each);
  return chain;
}

/** Of an AggregateError, as `Promise.any` throws it: one provider may have been aborted while another was not reached. */
const partsOf = (error: unknown): unknown[] =>
  tried(() => {
    const parts = read(error, 'errors');
    return Array.isArray(parts) ? (parts as unknown[]).slice(0, MOST_PARTS) : [];
  }) ?? [];

function isPartAbort(part: unknown): boolean {
  const chain = causesOf(part);
  return chain.some(isAbort) && !chain.some(boughtNothing);
}

const isAbort = (error: unknown): boolean =>
  ABORT_CODES.has(textOf(error, 'code')) ||
  ABORT_NAMES.has(textOf(error, 'name')) ||
  ABORT_CLASSES.has(textOf(read(error, 'constructor'), 'name'));

const boughtNothing = (error: unknown): boolean => isOurs(error) || NOT_CONNECTED.has(textOf(error, 'code'));

const isOurs = (error: unknown): boolean => tried(() => error instanceof SyncGuardError) ?? false;

/** An argument that is an aborted signal, or has one: options, or a Request. */
function holdsAborted(arg: unknown): boolean {
  if (isAborted(arg) || isAborted(read(arg, 'signal'))) return true;
  return namesIn(arg).some((name) => isAborted(read(arg, name)));
}

const isAborted = (value: unknown): boolean =>
  read(value, 'aborted') === true && typeof read(value, 'addEventListener') === 'function';

/** Of a plain object; none of anything else. */
function namesIn(value: unknown): string[] {
  if (typeof value !== 'object' || value === null) return [];
  const names = tried(() => {
    const prototype: unknown = Object.getPrototypeOf(value);
    return prototype === Object.prototype || prototype === null ? Object.keys(value) : [];
  });
  return names ?? [];
}

function textOf(value: unknown, name: string): string {
  const text = read(value, name);
  return typeof text === 'string' ? text : '';
}

/** A property of anything. */
function read(value: unknown, name: string): unknown {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return undefined;
  return tried(() => (value as Record<string, unknown>)[name]);
}

/** What was thrown or passed may be of any kind: its getters may throw, and a Proxy at every look. */
function tried<T>(look: () => T): T | undefined {
  try {
    return look();
  } catch {
    return undefined;
  }
}
