import { createHmac, hash } from 'node:crypto';
import { shownHash } from '../core/keys.js';
import type { Kept } from './once.backend.js';
import { invalidCall, refusal } from './once.errors.js';
import type { ResolvedOnceOptions } from './once.options.js';
import type { OnceOutcome } from './once.types.js';

/** Marks what JSON cannot write. Objects of the app that have this name themselves are marked too. */
const MARK = '$once';
type Marked = { readonly [MARK]: string; readonly is: unknown };
const marked = (as: string, is: unknown): Marked => ({ [MARK]: as, is });

/** A replacer of `JSON.stringify`. It reads the holder, as JSON has called `toJSON` of the value. */
function mark(this: Record<string, unknown>, name: string, value: unknown): unknown {
  const raw = this[name];
  if (typeof raw === 'bigint') return marked('bigint', String(raw));
  if (typeof raw === 'number' && !Number.isFinite(raw)) return marked('number', String(raw));
  if (typeof raw !== 'object' || raw === null) return value;
  if (raw instanceof Date) return marked('date', raw.toJSON());
  if (raw instanceof Uint8Array) return marked('bytes', Buffer.from(raw).toString('base64'));
  if (typeof (raw as { pipe?: unknown }).pipe === 'function' || Symbol.asyncIterator in raw)
    throw new TypeError('JSON cannot write a stream.');
  // Such as a Map, a Set, URLSearchParams or FormData.
  if (raw === value && Symbol.iterator in raw && !Array.isArray(raw) && !(raw instanceof String))
    throw new TypeError('JSON cannot write what is iterable and no array.');
  return Object.hasOwn(raw, MARK) ? marked('object', Object.entries(value as object)) : value;
}

const UNMARKED: Readonly<Record<string, (is: never) => unknown>> = {
  bigint: (is: string) => BigInt(is),
  number: Number,
  date: (is: string | null) => new Date(is ?? NaN),
  bytes: (is: string) => Buffer.from(is, 'base64'),
  object: (is: [string, unknown][]) => Object.fromEntries(is),
};

function unmark(_: string, value: unknown): unknown {
  const as = (value as Partial<Marked> | null)?.[MARK];
  return typeof as === 'string' ? UNMARKED[as]?.((value as Marked).is as never) : value;
}

/**
 * Writes a result as JSON. Dates, bytes and bigints come back as what they were. Instances of classes come back as plain
 * objects, and undefined as undefined.
 *
 * @throws TypeError for what JSON cannot write: circular objects, streams, Maps, Sets and the like
 */
const jsonOf = (value: unknown): string => JSON.stringify(value, mark) ?? '';
/** Most texts have no mark, and a reviver takes several times as long. */
const valueOf = (json: string): unknown =>
  json === '' ? undefined : JSON.parse(json, json.includes(MARK) ? unmark : undefined);

/** The same, with the names of all objects in order. */
const canonical = (value: unknown): string =>
  JSON.stringify(value, function (this: Record<string, unknown>, name: string, given: unknown): unknown {
    const found = mark.call(this, name, given);
    if (typeof found !== 'object' || found === null || Array.isArray(found)) return found;
    refuseOpaque(found);
    // Without a prototype, so that a client's own `__proto__` is a name like others.
    const sorted = Object.create(null) as Record<string, unknown>;
    for (const each of Object.keys(found).sort()) sorted[each] = (found as Record<string, unknown>)[each];
    return sorted;
  }) ?? '';

/** Promises and objects with private fields only are all written as `{}`, so that nothing would be compared. */
function refuseOpaque(value: object): void {
  const prototype = Object.getPrototypeOf(value) as object | null;
  // A prototype without one of its own is that of plain objects, and that of what adapters parse queries into.
  const isPlain = prototype === null || Object.getPrototypeOf(prototype) === null;
  if (!isPlain && Object.keys(value).length === 0) throw new TypeError('JSON writes nothing of this object.');
}

/** Returns the hash by which the payloads of two calls are compared. */
export function fingerprintOf(payload: unknown, hashSecret: string | undefined): string {
  if (payload === undefined) return '-';
  let text: string;
  try {
    text = canonical(payload);
  } catch {
    throw invalidCall(
      'The payload cannot be written as JSON, so calls cannot be compared.',
      'Pass a `payload` of plain values: no promises, circular objects, Maps, Sets and the like.',
    );
  }
  return hashSecret === undefined
    ? hash('sha256', text, 'base64url')
    : createHmac('sha256', hashSecret).update(text).digest('base64url');
}

/** An answer over HTTP, as the adapter was about to send it. */
export interface Answer {
  readonly status: number;
  readonly headers: Readonly<Record<string, string | readonly string[]>>;
  readonly body: Buffer;
}
type Head = Omit<Answer, 'body'>;
type Bytes = Kept['bytes'];

/**
 * Turns what is kept into bytes and back: by `encode` and `decode` of the app, or as JSON. What cannot be kept is noted in the
 * log, and the run is done without a result.
 */
export class OnceCodec {
  constructor(
    private readonly options: Pick<ResolvedOnceOptions, 'encode' | 'decode' | 'maxBytes'>,
    private readonly warn: (line: string) => void,
  ) {}

  /** A promise only of what `encode` makes. */
  kept(key: string, outcome: OnceOutcome): Kept | Promise<Kept> {
    return 'error' in outcome
      ? this.#kept(key, 'error', () => this.#pack(shownError(outcome.error)))
      : this.#kept(key, 'value', () => this.#pack(outcome.value));
  }

  /** The head as JSON in one line, and the body as it is. */
  keptAnswer(key: string, answer: () => Answer): Kept | Promise<Kept> {
    return this.#kept(key, 'http', () => {
      const { body, ...head } = answer();
      if (this.options.encode) return this.#pack({ ...head, body: body.toString('base64') });
      return Buffer.concat([Buffer.from(`${JSON.stringify(head)}\n`), body]);
    });
  }

  doneWithout(key: string, why: string): Kept {
    this.warn(
      `ONCE_NOT_KEPT: The result of ${shownHash(key)} is not kept: ${why}. Later calls with this key get ResultNotKept.`,
    );
    return { form: 'none', bytes: '' };
  }

  /** Returns the value that is kept, or throws the error that is kept. */
  async valueOf(key: string, { form, bytes }: Kept): Promise<unknown> {
    if (form === 'none') throw refusal('ResultNotKept', key);
    const { decode } = this.options;
    if (form === 'http' && !decode) return answerIn(bytes as Buffer);
    const value: unknown = decode ? await decode(bytes as Buffer) : valueOf(String(bytes));
    if (form === 'value') return value;
    if (form === 'http') {
      const { body, ...head } = value as Head & { body: string };
      return { ...head, body: Buffer.from(body, 'base64') };
    }
    const { name, message } = value as Pick<Error, 'name' | 'message'>;
    throw Object.assign(new Error(message), { name });
  }

  /** Returns the answer that is kept. */
  async answerOf(key: string, kept: Kept): Promise<Answer> {
    const value = await this.valueOf(key, kept);
    if (kept.form === 'http') return value as Answer;
    const body = Buffer.from(JSON.stringify(value) ?? '');
    return { status: 200, headers: { 'content-type': 'application/json; charset=utf-8' }, body };
  }

  #kept(key: string, form: Kept['form'], pack: () => Bytes | Promise<Bytes>): Kept | Promise<Kept> {
    const { maxBytes } = this.options;
    const fitting = (bytes: Bytes): Kept => {
      const length = Buffer.byteLength(bytes);
      if (length <= maxBytes) return { form, bytes };
      return this.doneWithout(key, `it has ${length} bytes, and \`once.maxBytes\` is ${maxBytes}`);
    };
    const failed = (error: unknown): Kept => {
      const name = error instanceof Error ? error.name : 'error';
      return this.doneWithout(key, `it could not be written as JSON or by \`once.encode\` (${name})`);
    };
    try {
      const packed = pack();
      return packed instanceof Promise ? packed.then(fitting).catch(failed) : fitting(packed);
    } catch (error) {
      return failed(error);
    }
  }

  #pack(value: unknown): Bytes | Promise<Bytes> {
    const { encode } = this.options;
    return encode ? encoded(encode, value) : jsonOf(value);
  }
}

const encoded = async (encode: NonNullable<ResolvedOnceOptions['encode']>, value: unknown): Promise<Buffer> =>
  Buffer.from((await encode(value)) as string);

function answerIn(bytes: Buffer): Answer {
  const end = bytes.indexOf('\n');
  const head = JSON.parse(bytes.toString('utf8', 0, end)) as Head;
  return { ...head, body: bytes.subarray(end + 1) };
}

function shownError(error: unknown): { name: string; message: string } {
  const { name, message } = (error ?? {}) as Partial<Error>;
  return { name: String(name ?? 'Error'), message: String(message ?? error) };
}
