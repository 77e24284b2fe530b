import { SyncGuardError } from '../core/errors.js';
import { read, safely } from '../core/foreign-values.js';
import { signalsIn } from '../method/abort-signals.js';

const ABORT_NAMES = new Set(['AbortError', 'TimeoutError']);
/** Errors of clients of language models that do not set `name`, so they are recognised by their class. */
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
/** Codes of connections that failed before anything was sent, so nothing was bought. */
const NOT_CONNECTED = new Set(['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'UND_ERR_CONNECT_TIMEOUT']);

const DEEPEST_CAUSE = 8;
const MOST_PARTS = 32;

/**
 * Returns whether a body ended because its caller hung up or ran out of time. The provider may have done the
 * work, so it is paid for.
 *
 * @param args - the arguments of the body. An aborted signal among them counts too, since a provider may
 *   throw any reason.
 */
export function isHangUp(error: unknown, args: readonly unknown[]): boolean {
  const chain = causesOf(error);
  if (chain.some(costsNothing)) return false;
  return chain.some((each) => isAbort(each) || partsOf(each).some(isPartAbort)) || hasAborted(args);
}

export const hasAborted = (args: readonly unknown[]): boolean =>
  signalsIn(args).some(({ aborted }) => aborted);

function causesOf(error: unknown): unknown[] {
  const chain: unknown[] = [];
  for (let each = error; each && chain.length < DEEPEST_CAUSE; each = read(each, 'cause')) chain.push(each);
  return chain;
}

/**
 * Returns the errors of an AggregateError, as `Promise.any` throws it. One provider may have been aborted
 * while another one could not be reached.
 */
const partsOf = (error: unknown): unknown[] =>
  safely(() => {
    const parts = read(error, 'errors');
    return Array.isArray(parts) ? (parts as unknown[]).slice(0, MOST_PARTS) : [];
  }) ?? [];

function isPartAbort(part: unknown): boolean {
  const chain = causesOf(part);
  return chain.some(isAbort) && !chain.some(costsNothing);
}

const isAbort = (error: unknown): boolean =>
  ABORT_CODES.has(textOf(error, 'code')) ||
  ABORT_NAMES.has(textOf(error, 'name')) ||
  ABORT_CLASSES.has(textOf(read(error, 'constructor'), 'name'));

const costsNothing = (error: unknown): boolean =>
  safely(() => error instanceof SyncGuardError) || NOT_CONNECTED.has(textOf(error, 'code'));

function textOf(value: unknown, name: string): string {
  const text = read(value, name);
  return typeof text === 'string' ? text : '';
}
