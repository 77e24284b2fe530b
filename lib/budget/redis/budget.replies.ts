import { RedisFault, unreadableValue } from '../../redis/redis.errors.js';
import { unexpectedReply } from '../../script/define-script.js';
import { parsePeriodKey } from '../budget.calendar.js';
import type { AbortOutcome, RefundOutcome, ReserveOutcome } from '../budget.backend.js';
import type {
  Amount,
  Balance,
  BudgetRecord,
  BudgetRefusal,
  ChargeResult,
  CreditResult,
  Crossed,
  Exceeded,
  ExtendHoldResult,
  FinalizeResult,
} from '../budget.types.js';
import { ANY_NONCE, attachNonce, defineBalances } from '../budget.validate.js';
import {
  abortedOf,
  availableOf,
  chargedOf,
  exceeded,
  finalizedOf,
  type Head,
  type ReplyContext,
} from '../budget.results.js';

/** The reply of every budget script: a status and its data, all as text. */
export type TextReply = readonly [status: string, ...rest: string[]];

export function textReply(reply: unknown): TextReply {
  if (Array.isArray(reply) && reply.length > 0 && reply.every((each) => typeof each === 'string'))
    return reply as unknown as TextReply;
  return unexpectedReply('budget', reply);
}

/** Parses a refusal [reason, record, detail]. */
function refused<const Reason extends string>(
  script: string,
  reply: TextReply,
  about: ReplyContext,
  reasons: readonly Reason[],
): BudgetRefusal<Reason> {
  const [status, packed, detail] = reply;
  const reason = reasons.find((each) => each === status);
  if (reason === undefined) return unexpectedReply(script, reply);
  return { ok: false, reason, record: parseRecord(packed, detail, about) };
}

/**
 * Parses the reply of `budget-reserve`.
 *
 * @param nonce - the nonce of the call. A replayed hold has the nonce of the call that created it.
 * @throws TypeError on a reply that the script does not document
 */
export function parseBudgetResult(reply: unknown, about: ReplyContext, nonce = ANY_NONCE): ReserveOutcome {
  const answer = textReply(reply);
  const [status, packed] = answer;
  if (status === 'reserved' || status === 'replayed') {
    const replayed = status === 'replayed';
    const { root, id } = about;
    const { generation, amount, expiresAtMs } = parseHead(packed);
    const hold = {
      ok: true,
      status: 'reserved',
      root,
      id,
      generation,
      amount,
      expiresAtMs,
      replayed,
    } as const;
    return attachNonce(withEntries(hold, answer), (replayed && answer[6]) || nonce);
  }
  if (status === 'exceeded') return parseExceeded(answer);
  if (status === 'pending') {
    const record = parseRecord(packed, answer[2], about);
    return { ok: false, reason: status, record, endsInMs: record.expiresAtMs - Number(answer[3]) };
  }
  const reasons = ['conflict', 'already_finalized', 'already_aborted', 'already_expired'] as const;
  return refused('budget-reserve', answer, about, reasons);
}

export function parseChargeResult(answer: TextReply, about: ReplyContext): ChargeResult {
  const [status, packed] = answer;
  if (status === 'charged' || status === 'replayed')
    return withEntries(chargedOf(parseHead(packed), about, status === 'replayed'), answer);
  return status === 'exceeded'
    ? parseExceeded(answer)
    : refused('budget-charge', answer, about, ['conflict']);
}

/**
 * Parses the reply of `budget-finalize`.
 *
 * @throws TypeError on a reply that the script does not document
 */
export function parseFinalizeResult(reply: unknown, about: ReplyContext): FinalizeResult {
  const answer = textReply(reply);
  const [status, packed] = answer;
  if (status === 'finalized' || status === 'replayed')
    return withEntries(finalizedOf(parseHead(packed), about, status === 'replayed'), answer);
  if (status === 'not_found') return { ok: false, reason: status };
  return refused('budget-finalize', answer, about, ['overage_rejected', 'conflict', 'aborted', 'expired']);
}

export function parseAbortResult(answer: TextReply, about: ReplyContext): AbortOutcome {
  const [status, packed] = answer;
  if (status === 'aborted' || status === 'replayed')
    return abortedOf(parseHead(packed), status === 'replayed');
  if (status === 'not_found') return { ok: false, reason: status };
  return refused('budget-abort', answer, about, ['finalized', 'expired']);
}

export function parseExtendResult(answer: TextReply, about: ReplyContext): ExtendHoldResult {
  const [status, packed] = answer;
  if (status === 'extended') return { ok: true, status, expiresAtMs: parseHead(packed).expiresAtMs };
  if (status === 'not_found') return { ok: false, reason: status };
  return refused('budget-extend', answer, about, ['finalized', 'aborted', 'expired']);
}

export function parseRefundResult(answer: TextReply, about: ReplyContext, amount: Amount): RefundOutcome {
  const [status, packed, ...lists] = answer;
  if (status === 'refunded' || status === 'replayed') {
    const { refunded } = parseHead(packed);
    const replayed = status === 'replayed';
    const result = { ok: true, status: 'refunded', amount, refunded, replayed } as const;
    return { ...result, balances: parseBalances(lists), ...atMaxOf(answer) };
  }
  if (status === 'conflict' || status === 'not_found') return { ok: false, reason: status };
  return refused('budget-refund', answer, about, ['exceeds_committed', 'pending', 'aborted', 'expired']);
}

export function parseCreditResult([status, ...lists]: TextReply): CreditResult {
  if (status === 'conflict') return { ok: false, reason: status };
  const [balance] = parseBalances(lists);
  if ((status === 'credited' || status === 'replayed') && balance)
    return { ok: true, status: 'credited', replayed: status === 'replayed', balance };
  return unexpectedReply('budget-credit', [status, ...lists]);
}

/** Parses the entries of a reply: lists of fields (c|scope|period|start), ends, limits and counters. */
export function parseBalances(lists: readonly string[]): Balance[] {
  const [fields = '', ...facts] = lists;
  const [ends, limits, counters] = facts.map((list) => list.split(';'));
  return namesIn(fields).map((field, i) => parseBalance(field, ends?.[i], limits?.[i], counters?.[i]));
}

/** Returns the names in a list of fields, which begins with '~'. */
const namesIn = (fields: string): string[] => fields.split(';').filter((field) => field !== '~');

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

/** A reply ends with 'max' where a sum stopped at the largest amount. */
const atMaxOf = ([, , , , , , last]: TextReply) => (last === 'max' ? { isAtMax: true } : {});

/** Adds balances and crossed thresholds, from a reply [status, record, fields, ends, limits, counters]. */
function withEntries<Result extends object>(result: Result, answer: TextReply) {
  const complete = result as Result & { balances: Balance[]; crossed: Crossed[] };
  defineBalances(complete, () => parseBalances(answer.slice(2)));
  complete.crossed = parseCrossed(answer);
  return answer[6] === undefined ? complete : Object.assign(complete, atMaxOf(answer));
}

/**
 * Parses the crossed thresholds, which are the last word of the record: a list of percentages for each entry,
 * or '-' where none was crossed.
 */
function parseCrossed([, record = '', fields = '']: TextReply): Crossed[] {
  const percents = record.slice(record.lastIndexOf(' ') + 1);
  if (percents === '-') return [];
  const names = namesIn(fields);
  return percents.split(';').flatMap((list, i): Crossed[] => {
    if (list === '-') return [];
    const [, scope = '', period = ''] = names[i]?.split('|') ?? [];
    const entry = { scope: decodeScope(scope), period: parsePeriodKey(period) };
    return list.split(',').map((percent) => ({ ...entry, percent: Number(percent) }));
  });
}

const parseExceeded = ([, amount = '', nowMs, ...lists]: TextReply): Exceeded =>
  exceeded(parseBalances(lists), Number(amount), Number(nowMs));

const STATES = { p: 'pending', f: 'finalized', a: 'aborted', x: 'expired' } as const;
const KINDS = { h: 'hold', c: 'charge' } as const;

/** Parses the changing part of an operation. Its words are RECORD in budget.fragments.ts. */
function parseHead(packed = ''): Head {
  const [version, ...words] = packed.split(' ');
  const state = STATES[words[0] as keyof typeof STATES];
  const kind = KINDS[words[1] as keyof typeof KINDS];
  if (version !== '1' || words.length !== 13 || !state || !kind) throw unreadableValue(packed);
  const number = (at: number): number => Number(words[at]);
  return {
    kind,
    state,
    generation: number(2),
    amount: number(3),
    actual: number(4),
    committed: number(5),
    refunded: number(6),
    uncovered: number(7),
    late: words[8] === '1',
    createdAtMs: number(9),
    expiresAtMs: number(10),
    endedAtMs: number(11) || null,
  };
}

/** `nowMs` is the server's time, for a script that only reads: an expired hold may still be stored as pending. */
export function parseRecord(
  packed: string | undefined,
  detail: string | undefined,
  { root, id }: ReplyContext,
  nowMs = 0,
): BudgetRecord {
  const head = parseHead(packed);
  const { expiresAtMs } = head;
  const isExpired = head.state === 'pending' && expiresAtMs <= nowMs;
  const { fields, meta } = parseDetail(detail);
  return {
    ...{ root, id, ...head },
    ...(isExpired ? { state: 'expired', endedAtMs: expiresAtMs } : {}),
    scopes: [...new Set(fields.map((field) => decodeScope(field.split('|')[1] ?? '')))],
    meta: meta === '' ? undefined : parseMeta(meta),
  };
}

function parseMeta(meta: string): unknown {
  try {
    return JSON.parse(meta);
  } catch {
    throw unreadableValue(meta);
  }
}

/** Parses the fixed part of an operation. Its words are DETAIL_FIELDS in budget.operation.fragments.ts. */
export function parseDetail(detail = ''): { fields: string[]; meta: string } {
  const [, , fields = '', , , , , ...meta] = detail.split(' ');
  if (meta.length === 0 || !fields.startsWith('~')) throw unreadableValue(detail);
  return { fields: namesIn(fields), meta: meta.join(' ') };
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
