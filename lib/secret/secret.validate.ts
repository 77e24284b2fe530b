import { hash, randomBytes } from 'node:crypto';
import { days } from '../core/time.js';
import {
  describePrivate,
  type CallOptions,
  callOptions,
  duration,
  integer,
  invalidOption,
  jsonOf,
  leavingAs,
  normalizeKey,
  userKey,
  withoutValue,
} from '../core/validate.js';
import { invalidArgument, SecretError } from './secret.errors.js';
import type { ResolvedSecretOptions } from './secret.options.js';
import type { CreateSecretOptions, ViewOptions } from './secret.types.js';

/** No error of a secret's call quotes an argument. */
export const { checked, attributed } = leavingAs((error) => SecretError.from(withoutValue(error)));

/** The most views of one secret. Each is remembered as long as the secret lives, so that a retry is recognised. */
export const MAX_VIEWS = 10_000;
/** The most views that are on lease at once. Every call of `view()` reads all of them. */
export const MAX_LEASES = 100;

const MAX_TTL_MS = days(3_650);
const MAX_META_BYTES = 4_096;
const MAX_LABEL_BYTES = 200;
/** Each wrong try is remembered, so that its viewId cannot show the secret again. */
const MAX_FAILURES = 100;

const RECEIPT = /^receipt\.([\w-]{22})\.([\w-]{22})$/;

/** Not from the pool of `randomId`: a copy of the memory would have ids of secrets that are yet to come. */
export const createId = (): string => randomBytes(16).toString('base64url');

/** Returns the tag of an id, a viewId or a receipt, 128 bits of its SHA-256. So no backend has what opens or burns a secret. */
export const tagOf = (id: string): string => hash('sha256', id, 'base64url').slice(0, 22);

/**
 * What a backend gets of a receipt: the tag of the secret, and the hash of the receipt's random part. So nobody who reads
 * a record, the slow log or MONITOR can burn the secret.
 */
export interface Receipt {
  readonly tag: string;
  readonly proof: string;
}

/** Returns a new receipt as its owner and as a backend gets it. It names a secret by its tag and not by its id. */
export function createReceipt(tag: string): Receipt & { readonly receipt: string } {
  const random = createId();
  return { receipt: `receipt.${tag}.${random}`, tag, proof: tagOf(random) };
}

export function parseReceipt(text: unknown): Receipt | undefined {
  const [, tag, random] = (typeof text === 'string' && RECEIPT.exec(text)) || [];
  return tag && random ? { tag, proof: tagOf(random) } : undefined;
}

export function validateReceipt(receipt: unknown): Receipt {
  const parsed = parseReceipt(receipt);
  if (parsed) return parsed;
  throw invalidArgument(
    `receipt must be a receipt of create(), got ${describePrivate(receipt)}.`,
    'Pass the `receipt` that create() returned, unchanged. An id is not a receipt.',
  );
}

/** The checked options of `create()`. An option that was left out is null or ''. An id is always set. */
export interface CheckedSecret {
  readonly id: string;
  readonly payload: Buffer;
  /** Whether the payload was a string. */
  readonly text: boolean;
  readonly views: number | null;
  readonly ttlMs: number | null;
  /** JSON, or empty. */
  readonly meta: string;
  readonly maxFailures: number | null;
  /** Text, or empty. */
  readonly label: string;
  readonly tombstoneMs: number;
}

const CREATE_OPTIONS = [
  'payload',
  'views',
  'ttlMs',
  'id',
  'meta',
  'maxFailures',
  'label',
  'tombstoneMs',
] as const;

export const validateCreate = (
  secret: CreateSecretOptions,
  { maxBytes, tombstoneMs: usualMs }: Pick<ResolvedSecretOptions, 'maxBytes' | 'tombstoneMs'>,
): CheckedSecret =>
  checked(() => {
    const given = callOptions(secret, CREATE_OPTIONS);
    const { payload, views, ttlMs, id, meta, maxFailures, label, tombstoneMs } = given;
    if (views === undefined && ttlMs === undefined)
      throw invalidArgument(
        'views or ttlMs must be given, got undefined.',
        'Set how often the secret opens, for how long, or both.',
      );
    return {
      ...validatePayload(payload, maxBytes),
      views: views === undefined ? null : integer('views', views, 1, MAX_VIEWS),
      ttlMs: ttlMs === undefined ? null : integer('ttlMs', ttlMs, 1, MAX_TTL_MS),
      id: id === undefined ? createId() : validateNewId(id),
      meta: meta === undefined ? '' : validateMeta(meta),
      maxFailures: maxFailures === undefined ? null : integer('maxFailures', maxFailures, 1, MAX_FAILURES),
      label: label === undefined ? '' : validateLabel(label),
      tombstoneMs: integer('tombstoneMs', tombstoneMs ?? usualMs),
    };
  });

export const validateId = (id: unknown): string => checked(() => normalizeKey(id, 'id'));

export const validateCall = (options: CallOptions): CallOptions => checked(() => callOptions(options, []));

export const validateView = (options: ViewOptions): { viewId: string; callId: string; leaseMs: number } =>
  checked(() => {
    const { viewId, leaseMs } = callOptions(options, ['viewId', 'leaseMs']);
    const callId = createId();
    return {
      viewId: viewId === undefined ? callId : userKey(viewId, 'viewId'),
      callId,
      leaseMs: leaseMs === undefined ? 0 : duration('leaseMs', leaseMs),
    };
  });

function validatePayload(payload: unknown, maxBytes: number): { payload: Buffer; text: boolean } {
  const text = typeof payload === 'string';
  if (!text && !(payload instanceof Uint8Array))
    throw invalidOption('payload', 'a string or a Buffer', payload);
  if (text && !payload.isWellFormed())
    throw invalidArgument('payload must be text without lone surrogates, which are halves of characters.');
  const bytes = text ? Buffer.byteLength(payload) : payload.byteLength;
  if (bytes > maxBytes)
    throw invalidArgument(
      `payload must be at most ${maxBytes} bytes, got ${bytes}.`,
      'Raise `secret.maxBytes`, or store the data elsewhere, encrypted, and keep only its key as a secret.',
    );
  // Copied, because the caller may write into the buffer before it is sent.
  return { payload: Buffer.from(payload as string), text };
}

function validateNewId(id: unknown): string {
  const normalized = userKey(id, 'id');
  if (!parseReceipt(normalized)) return normalized;
  throw invalidArgument(
    'id must be an id of your own, got a receipt.',
    'Leave out the id to get a random one.',
  );
}

function validateMeta(meta: unknown): string {
  const json = jsonOf(meta);
  // JSON.stringify calls toJSON(), so its result is checked and stored.
  if (!json?.startsWith('{')) throw invalidOption('meta', 'a JSON object', meta);
  const bytes = Buffer.byteLength(json);
  if (bytes > MAX_META_BYTES) throw invalidOption('meta', `at most ${MAX_META_BYTES} bytes as JSON`, bytes);
  return json;
}

function validateLabel(label: unknown): string {
  if (typeof label === 'string' && label.isWellFormed() && Buffer.byteLength(label) <= MAX_LABEL_BYTES)
    return label;
  throw invalidArgument(
    `label must be text of at most ${MAX_LABEL_BYTES} UTF-8 bytes, got ${describePrivate(label)}.`,
  );
}
