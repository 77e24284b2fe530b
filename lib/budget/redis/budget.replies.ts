import { RedisFault, unreadableValue } from '../../redis/redis.errors.js';
import { unexpectedReply } from '../../script/define-script.js';
import { parsePeriodKey } from '../budget.calendar.js';
import type { ReserveOutcome } from '../budget.backend.js';
import type {
  Balance,
  BudgetRecord,
  CreditResult,
  Crossed,
  Exceeded,
  FinalizeResult,
} from '../budget.types.js';
import {
  type Answer,
  availableOf,
  exceeded,
  finalizedOf,
  type Head,
  type ReplyContext,
  reservedOf,
} from '../budget.results.js';
import { StoredRecord } from './budget.record.js';

/** The reply of every budget script: a status and its data, all as text. */
export type TextReply = readonly [status: string, ...rest: string[]];

export function textReply(reply: unknown): TextReply {
  if (Array.isArray(reply) && reply.length > 0 && reply.every((each) => typeof each === 'string'))
    return reply as unknown as TextReply;
  return unexpectedReply('budget', reply);
}

/** A reply [status, record, limits, counters, 'max' where a sum stopped at the largest amount]. */
class StoredAnswer implements Answer {
  readonly root: string;
  readonly id: string;
  readonly replayed: boolean;
  readonly isAtMax: boolean;
  readonly head: Head;
  readonly #record: StoredRecord;

  constructor(
    private readonly reply: TextReply,
    { root, id }: ReplyContext,
  ) {
    const [status, packed, , , last] = reply;
    this.root = root;
    this.id = id;
    this.replayed = status === 'replayed';
    this.isAtMax = last === 'max';
    this.#record = new StoredRecord(packed);
    this.head = headOf(this.#record);
  }

  get nonce(): string {
    return this.#record.text('nonceOf');
  }

  /** The record has a list of percentages for each entry, or '-' where none was crossed. */
  get crossed(): Crossed[] {
    const percents = this.#record.text('crossed');
    if (percents === '-') return [];
    const fields = this.#record.text('fieldsOf').split(';');
    return percents.split(';').flatMap((list, i): Crossed[] => {
      if (list === '-') return [];
      const [, scope = '', period = ''] = fields[i]?.split('|') ?? [];
      const entry = { scope: decodeScope(scope), period: parsePeriodKey(period) };
      return list.split(',').map((percent) => ({ ...entry, percent: Number(percent) }));
    });
  }

  balances(): Balance[] {
    const [, , limits = '', counters = ''] = this.reply;
    return parseBalances([this.#record.text('fieldsOf'), this.#record.text('endsOf'), limits, counters]);
  }
}

/** Why a script has not done what it was asked for. Most come with the record of the operation that has the id. */
const REASONS: ReadonlySet<string> = new Set([
  ...['not_found', 'conflict', 'pending', 'aborted', 'expired', 'finalized', 'overage_rejected'],
  ...['exceeds_committed', 'already_finalized', 'already_aborted', 'already_expired'],
]);

/**
 * Parses the reply of a script about an operation.
 *
 * @param done - the status where the script has done what it was asked for
 */
export function parseResult<Result extends object>(
  done: string,
  reply: unknown,
  about: ReplyContext,
  toResult: (answer: Answer) => Result,
) {
  const answer = textReply(reply);
  const [status, packed] = answer;
  if (status === done || status === 'replayed') return toResult(new StoredAnswer(answer, about));
  if (status === 'exceeded') return parseExceeded(answer);
  if (!REASONS.has(status)) return unexpectedReply('budget', reply);
  return { ok: false, reason: status, ...(packed !== undefined && { record: parseRecord(packed, about) }) };
}

/**
 * Parses the reply of `budget-reserve`.
 *
 * @throws TypeError on a reply that the script does not document
 */
export function parseBudgetResult(reply: unknown, about: ReplyContext): ReserveOutcome {
  const result = parseResult('reserved', reply, about, reservedOf) as ReserveOutcome;
  if (result.ok || result.reason !== 'pending') return result;
  const [, , nowMs] = textReply(reply);
  return { ...result, endsInMs: result.record.expiresAtMs - Number(nowMs) };
}

/**
 * Parses the reply of `budget-finalize`.
 *
 * @throws TypeError on a reply that the script does not document
 */
export const parseFinalizeResult = (reply: unknown, about: ReplyContext): FinalizeResult =>
  parseResult('finalized', reply, about, finalizedOf) as FinalizeResult;

export function parseCreditResult([status, ...lists]: TextReply): CreditResult {
  if (status === 'conflict') return { ok: false, reason: status };
  const [balance] = parseBalances(lists);
  if ((status === 'credited' || status === 'replayed') && balance)
    return { ok: true, status: 'credited', replayed: status === 'replayed', balance };
  return unexpectedReply('budget-credit', [status, ...lists]);
}

/** Parses lists of entries: fields (c|scope|period|start), ends, limits and counters. */
export function parseBalances([fields = '', ...facts]: readonly string[]): Balance[] {
  const [ends, limits, counters] = facts.map((list) => list.split(';'));
  return fields.split(';').map((field, i) => parseBalance(field, ends?.[i], limits?.[i], counters?.[i]));
}

function parseBalance(field: string, end = '', limit = '', counter = ''): Balance {
  const [, scope = '', period = '', start = ''] = field.split('|');
  const [version, committed, reserved, credits] = counter.split(' ');
  if (!end || !limit || version !== '1' || !committed || !reserved || !credits)
    throw unreadableValue(counter);
  const sums = {
    limit: limit === 'u' ? ('unlimited' as const) : Number(limit),
    credits: Number(credits),
    committed: Number(committed),
    reserved: Number(reserved),
  };
  return {
    scope: decodeScope(scope),
    period: parsePeriodKey(period),
    window: { startMs: Number(start), endMs: end === '0' ? null : Number(end) },
    ...sums,
    available: availableOf(sums),
  };
}

const parseExceeded = ([, amount = '', nowMs, ...lists]: TextReply): Exceeded =>
  exceeded(parseBalances(lists), Number(amount), Number(nowMs));

const STATES = { p: 'pending', f: 'finalized', a: 'aborted', x: 'expired' } as const;

/** Returns what an operation has come to. */
function headOf(record: StoredRecord): Head {
  return {
    kind: record.text('kind') === 'c' ? 'charge' : 'hold',
    state: STATES[record.text('state') as keyof typeof STATES],
    generation: record.number('generationOf'),
    amount: record.number('amountOf'),
    actual: record.number('actualOf'),
    committed: record.number('committedOf'),
    refunded: record.number('refundedOf'),
    uncovered: record.number('uncoveredOf'),
    late: record.text('lateOf') === '1',
    createdAtMs: record.number('createdAtMs'),
    expiresAtMs: record.number('expiresAtMs'),
    endedAtMs: record.number('endedAtMs') || null,
  };
}

/** `nowMs` is the server's time, for a script that only reads: an expired hold may still be stored as pending. */
export function parseRecord(packed: string | undefined, { root, id }: ReplyContext, nowMs = 0): BudgetRecord {
  const record = new StoredRecord(packed);
  const head = headOf(record);
  const { expiresAtMs } = head;
  const isExpired = head.state === 'pending' && expiresAtMs <= nowMs;
  const scopes = record
    .text('fieldsOf')
    .split(';')
    .map((field) => decodeScope(field.split('|')[1] ?? ''));
  return {
    ...{ root, id, ...head },
    ...(isExpired ? { state: 'expired', endedAtMs: expiresAtMs } : {}),
    scopes: [...new Set(scopes)],
    meta: record.meta === '' ? undefined : parseMeta(record.meta),
  };
}

function parseMeta(meta: string): unknown {
  try {
    return JSON.parse(meta);
  } catch {
    throw unreadableValue(meta);
  }
}

/** Returns undefined if a stored value cannot be read. One that a newer version has written throws. */
export function readable<T>(parse: () => T): T | undefined {
  try {
    return parse();
  } catch (error) {
    if (error instanceof RedisFault && error.code === 'Internal') return undefined;
    throw error;
  }
}

/** Returns the id in `o|<id>`, or in `O|<generation>|<id>`, the name of a hold whose id was reserved again. */
export const idOf = (field: string): string =>
  isRenewed(field) ? field.slice(field.indexOf('|', 2) + 1) : field.slice(2);

export const isRenewed = (field: string): boolean => field.startsWith('O|');

/** Encodes a scope so that it has no separator and stays readable in redis-cli. */
export const encodeScope = (scope: string): string =>
  /^[\w:.@-]+$/.test(scope) ? scope : encodeURIComponent(scope).replaceAll('%3A', ':').replaceAll('%40', '@');

export const decodeScope = (encoded: string): string =>
  encoded.includes('%') ? decodeURIComponent(encoded) : encoded;
