import { foreignValue } from '../redis/redis.errors.js';
import { unexpectedReply } from '../script/define-script.js';
import { parsePeriodKey } from './budget.calendar.js';
import type {
  AbortResult,
  Balance,
  BudgetRecord,
  ChargeResult,
  CreditResult,
  Crossed,
  Exceeded,
  ExtendHoldResult,
  Finalized,
  FinalizeResult,
  RefundResult,
  ReserveResult,
  Violation,
} from './budget.types.js';
import { availableOf, exceeded, finalizedOf, releasedOf } from './budget.rules.js';

/** What every budget script replies: a status and what belongs to it, all text. Its shapes stand with each script. */
export type TextReply = readonly [status: string, ...rest: string[]];

export function textReply(reply: unknown): TextReply {
  if (Array.isArray(reply) && reply.length > 0 && reply.every((each) => typeof each === 'string'))
    return reply as unknown as TextReply;
  return unexpectedReply('budget', reply);
}

/** The operation that a reply is about. */
export interface ReplyContext {
  readonly root: string;
  readonly id: string;
}

/**
 * The reply of `budget-reserve` as a result.
 *
 * @throws TypeError on a reply that the script does not promise.
 */
export function parseBudgetResult(reply: unknown, about: ReplyContext): ReserveResult<bigint> {
  const [status, first = '', ...lines] = textReply(reply);
  switch (status) {
    case 'reserved':
    case 'replayed': {
      const { amount, expiresAtMs } = parseRecord(first, about);
      return {
        ok: true,
        status: 'reserved',
        ...about,
        amount,
        expiresAtMs,
        replayed: status === 'replayed',
        ...parseLines(lines),
      };
    }
    case 'exceeded':
      return parseExceeded(first, lines);
    case 'conflict':
    case 'already_finalized':
    case 'already_aborted':
    case 'already_expired':
      return { ok: false, reason: status, record: parseRecord(first, about) };
    default:
      return unexpectedReply('budget-reserve', reply);
  }
}

export function parseChargeResult(reply: unknown, about: ReplyContext): ChargeResult<bigint> {
  const [status, first = '', ...lines] = textReply(reply);
  switch (status) {
    case 'charged':
    case 'replayed': {
      const { amount, uncovered } = parseRecord(first, about);
      return {
        ok: true,
        status: 'charged',
        ...about,
        amount,
        uncovered,
        replayed: status === 'replayed',
        ...parseLines(lines),
      };
    }
    case 'exceeded':
      return parseExceeded(first, lines);
    case 'conflict':
      return { ok: false, reason: status, record: parseRecord(first, about) };
    default:
      return unexpectedReply('budget-charge', reply);
  }
}

/**
 * The reply of `budget-finalize` as a result.
 *
 * @throws TypeError on a reply that the script does not promise.
 */
export function parseFinalizeResult(reply: unknown, about: ReplyContext): FinalizeResult<bigint> {
  const [status, packed = '', ...lines] = textReply(reply);
  switch (status) {
    case 'finalized':
    case 'replayed':
      return finalizedFrom(parseRecord(packed, about), status === 'replayed', lines);
    case 'overage_rejected':
    case 'conflict':
    case 'aborted':
    case 'expired':
      return { ok: false, reason: status, record: parseRecord(packed, about) };
    case 'not_found':
      return { ok: false, reason: status };
    default:
      return unexpectedReply('budget-finalize', reply);
  }
}

const finalizedFrom = (
  record: BudgetRecord<bigint>,
  replayed: boolean,
  lines: readonly string[],
): Finalized<bigint> => ({
  ...finalizedOf(record),
  replayed,
  ...parseLines(lines),
});

export function parseAbortResult(reply: unknown, about: ReplyContext): AbortResult<bigint> {
  const [status, packed = ''] = textReply(reply);
  switch (status) {
    case 'aborted':
    case 'replayed':
      return {
        ok: true,
        status: 'aborted',
        released: releasedOf(parseRecord(packed, about)),
        replayed: status === 'replayed',
      };
    case 'finalized':
      return { ok: false, reason: status, record: parseRecord(packed, about) };
    case 'not_found':
      return { ok: false, reason: status };
    default:
      return unexpectedReply('budget-abort', reply);
  }
}

export function parseExtendResult(reply: unknown, about: ReplyContext): ExtendHoldResult<bigint> {
  const [status, packed = ''] = textReply(reply);
  switch (status) {
    case 'extended':
      return { ok: true, status, expiresAtMs: parseRecord(packed, about).expiresAtMs };
    case 'finalized':
    case 'aborted':
    case 'expired':
      return { ok: false, reason: status, record: parseRecord(packed, about) };
    case 'not_found':
      return { ok: false, reason: status };
    default:
      return unexpectedReply('budget-extend', reply);
  }
}

export function parseRefundResult(reply: unknown, about: ReplyContext, amount: bigint): RefundResult<bigint> {
  const [status, packed = '', ...lines] = textReply(reply);
  switch (status) {
    case 'refunded':
    case 'replayed': {
      const { refunded } = parseRecord(packed, about);
      const { balances } = parseLines(lines);
      return { ok: true, status: 'refunded', amount, refunded, replayed: status === 'replayed', balances };
    }
    case 'exceeds_committed':
    case 'pending':
    case 'aborted':
    case 'expired':
      return { ok: false, reason: status, record: parseRecord(packed, about) };
    case 'conflict':
    case 'not_found':
      return { ok: false, reason: status };
    default:
      return unexpectedReply('budget-refund', reply);
  }
}

export function parseCreditResult(reply: unknown): CreditResult<bigint> {
  const [status, line] = textReply(reply);
  if (status === 'conflict') return { ok: false, reason: status };
  if ((status === 'credited' || status === 'replayed') && line)
    return {
      ok: true,
      status: 'credited',
      replayed: status === 'replayed',
      balance: parseLine(line).balance,
    };
  return unexpectedReply('budget-credit', reply);
}

export const parseBalances = (lines: readonly string[]): Balance<bigint>[] =>
  lines.map((line) => parseLine(line).balance);

function parseExceeded(amount: string, [nowMs, ...lines]: readonly string[]): Exceeded<bigint> {
  const requested = BigInt(amount);
  const violations = lines.map((line): Violation<bigint> => {
    const { scope, period, window, limit, committed, reserved, available } = parseLine(line).balance;
    return { scope, period, limit, committed, reserved, available, requested, resetAtMs: window.endMs };
  });
  return exceeded(violations, Number(nowMs));
}

function parseLines(lines: readonly string[]): { balances: Balance<bigint>[]; crossed: Crossed[] } {
  const balances: Balance<bigint>[] = [];
  const crossed: Crossed[] = [];
  for (const line of lines) {
    const { balance, percents } = parseLine(line);
    balances.push(balance);
    for (const percent of percents) crossed.push({ scope: balance.scope, period: balance.period, percent });
  }
  return { balances, crossed };
}

function parseLine(line: string): { balance: Balance<bigint>; percents: number[] } {
  const [scope, period, start, end, limit, credits, committed, reserved, crossed, ...more] = line.split('|');
  if (
    !scope ||
    !period ||
    !start ||
    !end ||
    !limit ||
    !credits ||
    !committed ||
    !reserved ||
    !crossed ||
    more.length > 0
  )
    throw new TypeError('not a budget balance');
  const sums = {
    limit: limit === 'u' ? ('unlimited' as const) : BigInt(limit),
    credits: BigInt(credits),
    committed: BigInt(committed),
    reserved: BigInt(reserved),
  };
  return {
    balance: {
      scope: decodeScope(scope),
      period: parsePeriodKey(period),
      window: { startMs: Number(start), endMs: end === '0' ? null : Number(end) },
      ...sums,
      available: availableOf(sums),
    },
    percents: crossed === '-' ? [] : crossed.split(',').map(Number),
  };
}

const STATES = { p: 'pending', f: 'finalized', a: 'aborted', x: 'expired' } as const;
const KINDS = { h: 'hold', c: 'charge' } as const;

const PACKED_RECORD =
  /^([pfax]) ([hc]) (\d+) (\d+) (\d+) (\d+) (\d+) ([01]) (\d+) (\d+) (\d+) (\S+) (\S+) (\S+) (.*)$/s;

/** A record as the scripts pack it: budget.fragments.ts. */
export function parseRecord(packed: string, { root, id }: ReplyContext): BudgetRecord<bigint> {
  const match = PACKED_RECORD.exec(packed);
  if (!match) throw foreignValue('not a budget record');
  const [
    ,
    state,
    kind,
    amount,
    actual,
    committed,
    refunded,
    uncovered,
    late,
    created,
    expires,
    ended,
    scopes,
  ] = match as unknown as string[] & Record<1 | 2 | 3 | 4 | 5 | 6 | 7 | 8 | 9 | 10 | 11 | 12, string>;
  const meta = match[15];
  return {
    root,
    id,
    kind: KINDS[kind as keyof typeof KINDS],
    state: STATES[state as keyof typeof STATES],
    scopes: (scopes as string).split(',').map(decodeScope),
    amount: BigInt(amount as string),
    actual: BigInt(actual as string),
    committed: BigInt(committed as string),
    refunded: BigInt(refunded as string),
    uncovered: BigInt(uncovered as string),
    late: late === '1',
    createdAtMs: Number(created),
    expiresAtMs: Number(expires),
    endedAtMs: ended === '0' ? null : Number(ended),
    meta: meta ? (JSON.parse(meta) as unknown) : undefined,
  };
}

/** The fields of each entry that a record counts in: for `verify`. */
export function parseRecordFields(packed: string): string[] {
  const match = PACKED_RECORD.exec(packed);
  if (!match) throw foreignValue('not a budget record');
  const scopes = (match[12] as string).split(',');
  return (match[13] as string).split(';').map((entry) => {
    const [at, period, start] = entry.split('|');
    return `c|${scopes[Number(at) - 1]}|${period}|${start}`;
  });
}

/** Readable in redis-cli, and free of every separator. */
export const encodeScope = (scope: string): string => encodeURIComponent(scope).replaceAll('%3A', ':');

export const decodeScope = (encoded: string): string => decodeURIComponent(encoded);
