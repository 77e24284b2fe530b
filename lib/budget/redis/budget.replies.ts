import { RedisFault, unreadableValue } from '../../redis/redis.errors.js';
import { unexpectedReply } from '../../script/define-script.js';
import { parsePeriodKey } from '../budget.calendar.js';
import type { Answer, Outcome, ReserveOutcome } from '../budget.backend.js';
import type { Balance, BudgetRecord, CreditResult, Crossed, FinalizeResult } from '../budget.types.js';
import { availableOf, exceeded, finalizedOf, type ReplyContext, reservedOf } from '../budget.results.js';
import { StoredRecord } from './budget.record.js';

/** The reply of every budget script: a status and its data, all as text. */
export type TextReply = readonly [status: string, ...rest: string[]];

export function textReply(reply: unknown): TextReply {
  if (Array.isArray(reply) && reply.length > 0 && reply.every((each) => typeof each === 'string'))
    return reply as unknown as TextReply;
  return unexpectedReply('budget', reply);
}

/** Why a script has not done what it was asked for. Most come with the record of the operation that has the id. */
const REASONS: ReadonlySet<string> = new Set([
  ...['not_found', 'conflict', 'pending', 'aborted', 'expired', 'finalized', 'overage_rejected'],
  ...['exceeds_committed', 'already_finalized', 'already_aborted', 'already_expired'],
]);

/**
 * Returns how the reply of a script about an operation is parsed.
 *
 * @param done - the status where the script has done what it was asked for
 */
export const outcomeOf =
  <Result extends { readonly ok: boolean }>(done: string) =>
  (reply: TextReply, about: ReplyContext): Outcome<Result> => {
    const [status, first, nowMs, ...lists] = reply;
    if (status === done || status === 'replayed') return parseAnswer(reply, about);
    const isFull = status === 'exceeded';
    const refusal: object = isFull
      ? exceeded(parseBalances(lists), Number(first), Number(nowMs))
      : parseRefusal(reply, about);
    return refusal as Outcome<Result>;
  };

/** Parses a reply [status, record, the server's time where a hold is pending]. Some have no record. */
function parseRefusal([status, packed, nowMs]: TextReply, about: ReplyContext) {
  if (!REASONS.has(status)) return unexpectedReply('budget', [status]);
  if (packed === undefined) return { ok: false, reason: status };
  const record = parseRecord(packed, about);
  const endsInMs = record.expiresAtMs - Number(nowMs);
  return { ok: false, reason: status, record, ...(nowMs !== undefined && { endsInMs }) };
}

/** Parses a reply [status, record, limits, counters, 'max' where a sum stopped at the largest amount]. */
function parseAnswer([status, packed, limits, counters, last]: TextReply, about: ReplyContext): Answer {
  const record = new StoredRecord(packed);
  const [fields, ends] = [record.text('fieldsOf'), record.text('endsOf')];
  return Object.assign(headOf(record, about), {
    ok: true as const,
    nonce: record.text('nonceOf'),
    replayed: status === 'replayed',
    balances: limits === undefined ? [] : parseBalances([fields, ends, limits, counters]),
    crossed: parseCrossed(record.text('crossed'), fields),
    isAtMax: last === 'max',
  });
}

/** Parses a list of percentages for each entry, or '-' where none was crossed. */
function parseCrossed(percents: string, fields: string): Crossed[] {
  if (percents === '-') return [];
  const names = fields.split(';');
  return percents.split(';').flatMap((list, i): Crossed[] => {
    if (list === '-') return [];
    const period = parsePeriodKey(names[i]?.split('|')[2] ?? '');
    return list.split(',').map((percent) => ({ scope: scopeOf(names[i]), period, percent: Number(percent) }));
  });
}

/**
 * Parses the reply of `budget-reserve`.
 *
 * @throws TypeError on a reply that the script does not document
 */
export function parseBudgetResult(reply: unknown, about: ReplyContext): ReserveOutcome {
  const outcome = outcomeOf<ReserveOutcome>('reserved')(textReply(reply), about);
  return outcome.ok ? reservedOf(outcome) : outcome;
}

/**
 * Parses the reply of `budget-finalize`.
 *
 * @throws TypeError on a reply that the script does not document
 */
export function parseFinalizeResult(reply: unknown, about: ReplyContext): FinalizeResult {
  const outcome = outcomeOf<FinalizeResult>('finalized')(textReply(reply), about);
  return outcome.ok ? finalizedOf(outcome) : outcome;
}

export function parseCreditResult([status, ...lists]: TextReply): CreditResult {
  if (status === 'conflict') return { ok: false, reason: status };
  const [balance] = parseBalances(lists);
  if ((status === 'credited' || status === 'replayed') && balance)
    return { ok: true, status: 'credited', replayed: status === 'replayed', balance };
  return unexpectedReply('budget-credit', [status, ...lists]);
}

/** Parses lists of entries: fields (c|scope|period|start), ends, limits and counters. */
export function parseBalances([fields = '', ...facts]: readonly (string | undefined)[]): Balance[] {
  const [ends, limits, counters] = facts.map((list) => list?.split(';'));
  return fields.split(';').map((field, i) => parseBalance(field, ends?.[i], limits?.[i], counters?.[i]));
}

function parseBalance(field: string, end = '', limit = '', counter = ''): Balance {
  const [, , period = '', start = ''] = field.split('|');
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
    scope: scopeOf(field),
    period: parsePeriodKey(period),
    window: { startMs: Number(start), endMs: end === '0' ? null : Number(end) },
    ...sums,
    available: availableOf(sums),
  };
}

const STATES = { p: 'pending', f: 'finalized', a: 'aborted', x: 'expired' } as const;

/** Returns what an operation has come to. */
function headOf(record: StoredRecord, { root, id }: ReplyContext) {
  return {
    root,
    id,
    kind: record.text('kind') === 'c' ? ('charge' as const) : ('hold' as const),
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
export function parseRecord(packed: string | undefined, about: ReplyContext, nowMs = 0): BudgetRecord {
  const record = new StoredRecord(packed);
  const head = headOf(record, about);
  const { state, expiresAtMs } = head;
  const isExpired = state === 'pending' && expiresAtMs <= nowMs;
  const scopes = record.text('fieldsOf').split(';').map(scopeOf);
  return {
    ...head,
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

/** Returns the scope in the name of a counter. */
export function scopeOf(field = ''): string {
  const [, encoded = ''] = field.split('|');
  return encoded.includes('%') ? decodeURIComponent(encoded) : encoded;
}
