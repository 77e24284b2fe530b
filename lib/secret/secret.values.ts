import { createHash, randomBytes } from 'node:crypto';
import { describe, normalizeKey } from '../keys.js';
import { type CallOptions, callOptions, duration, integer, invalidOption, jsonOf } from '../validate.js';
import { SecretError } from './secret.errors.js';
import type { CreateSecretOptions, ViewOptions } from './secret.types.js';

/** The most views of one secret: every one is remembered for its retries, while the secret lives. */
export const MAX_VIEWS = 10_000;
/** The most views on lease at once: each is looked at in every view. */
export const MAX_LEASES = 100;

const MAX_TTL_MS = 3_650 * 86_400_000;
const MAX_META_BYTES = 4_096;
const MAX_LABEL_BYTES = 200;
/** Each wrong try is remembered, so that its viewId shows nothing again. */
const MAX_FAILURES = 100;
const RECEIPT = /^receipt\.([\w-]{22})\.([\w-]{22})$/;

/** 16 bytes of the CSPRNG as 22 base64url characters. */
export const createId = (): string => randomBytes(16).toString('base64url');

/**
 * What stands for an id in keys, in receipts and in logs, and for a viewId in the record: 128 bits of its
 * SHA-256. So the ids themselves, which open secrets, are nowhere in the backend.
 */
export const tagOf = (id: string): string => createHash('sha256').update(id).digest('base64url').slice(0, 22);

/** Names a secret by its tag, not by its id; the proof keeps it from being made up. */
export const formatReceipt = (tag: string, proof: string): string => `receipt.${tag}.${proof}`;

export interface Receipt {
  readonly tag: string;
  readonly proof: string;
}

export function parseReceipt(text: unknown): Receipt | undefined {
  const [, tag, proof] = (typeof text === 'string' && RECEIPT.exec(text)) || [];
  return tag && proof ? { tag, proof } : undefined;
}

export function validateReceipt(receipt: unknown): Receipt {
  const parsed = parseReceipt(receipt);
  if (parsed) return parsed;
  throw new SecretError({
    code: 'InvalidArgument',
    message: `Invalid receipt, got ${describe(receipt)}.`,
    hint: 'Pass the `receipt` that create() gave, unchanged; an id is none.',
  });
}

/** A secret as it is stored. */
export interface CheckedSecret {
  readonly id: string;
  readonly payload: Buffer;
  /** It was given as a string. */
  readonly text: boolean;
  readonly views: number | null;
  readonly ttlMs: number | null;
  /** JSON, or nothing. */
  readonly meta: string;
  readonly maxFailures: number | null;
  /** Or nothing. */
  readonly label: string;
}

const CREATE_OPTIONS = ['payload', 'views', 'ttlMs', 'id', 'meta', 'maxFailures', 'label'] as const;

export const validateCreate = (secret: CreateSecretOptions, maxBytes: number): CheckedSecret =>
  checked(() => {
    const { payload, views, ttlMs, id, meta, maxFailures, label } = callOptions(secret, CREATE_OPTIONS);
    if (views === undefined && ttlMs === undefined)
      throw invalidOption(
        'views or ttlMs',
        'given',
        undefined,
        'Say how often it opens, for how long, or both.',
      );
    return {
      ...validatePayload(payload, maxBytes),
      views: views === undefined ? null : integer('views', views, 1, MAX_VIEWS),
      ttlMs: ttlMs === undefined ? null : integer('ttlMs', ttlMs, 1, MAX_TTL_MS),
      id: id === undefined ? createId() : validateNewId(id),
      meta: meta === undefined ? '' : validateMeta(meta),
      maxFailures: maxFailures === undefined ? null : integer('maxFailures', maxFailures, 1, MAX_FAILURES),
      label: label === undefined ? '' : validateLabel(label),
    };
  });

export const validateId = (id: unknown): string => checked(() => normalizeKey(id));

export const validateCall = (options: CallOptions): CallOptions => checked(() => callOptions(options, []));

export const validateView = (options: ViewOptions): { viewId: string; callId: string; leaseMs: number } =>
  checked(() => {
    const { viewId, leaseMs } = callOptions(options, ['viewId', 'leaseMs']);
    const callId = createId();
    return {
      viewId: viewId === undefined ? callId : normalizeKey(viewId),
      callId,
      leaseMs: leaseMs === undefined ? 0 : duration('leaseMs', leaseMs),
    };
  });

function validatePayload(payload: unknown, maxBytes: number): { payload: Buffer; text: boolean } {
  const text = typeof payload === 'string';
  if (!text && !(payload instanceof Uint8Array))
    throw invalidOption('payload', 'a string or a Buffer', payload);
  if (text && !payload.isWellFormed())
    throw invalidOption('payload', 'text without half characters (lone surrogates)', payload);
  const bytes = text ? Buffer.byteLength(payload) : payload.byteLength;
  if (bytes > maxBytes)
    throw new SecretError({
      code: 'InvalidArgument',
      message: `payload must be at most ${maxBytes} bytes, got ${bytes}.`,
      hint: 'Raise `secret.maxBytes`, or store the large thing elsewhere, encrypted, and keep its key here.',
    });
  // A copy: the caller's buffer may be written again before it is sent.
  return { payload: Buffer.from(payload as string), text };
}

function validateNewId(id: unknown): string {
  const normalized = normalizeKey(id);
  if (!parseReceipt(normalized)) return normalized;
  throw invalidOption('id', 'something other than a receipt', id);
}

function validateMeta(meta: unknown): string {
  const json = jsonOf(meta);
  // What toJSON() makes of it counts: that is what comes back.
  if (!json?.startsWith('{')) throw invalidOption('meta', 'a JSON object', meta);
  const bytes = Buffer.byteLength(json);
  if (bytes > MAX_META_BYTES) throw invalidOption('meta', `at most ${MAX_META_BYTES} bytes as JSON`, bytes);
  return json;
}

function validateLabel(label: unknown): string {
  if (typeof label === 'string' && label.isWellFormed() && Buffer.byteLength(label) <= MAX_LABEL_BYTES)
    return label;
  throw invalidOption('label', `text of at most ${MAX_LABEL_BYTES} bytes`, describe(label));
}

/** Runs the checks of a call; what they throw leaves as SecretError InvalidArgument. */
function checked<T>(check: () => T): T {
  try {
    return check();
  } catch (error) {
    throw SecretError.from(error);
  }
}
