import { inLines } from '../../script/fragments.js';
import { unreadableValue } from '../../redis/redis.errors.js';

// The record of an operation is one text, of these words. Each has its pattern in Lua.

/** What an operation has come to. */
const HEAD = {
  version: '1',
  /** p(ending), f(inalized), a(borted) or (e)x(pired). */
  state: '%a',
  /** h(old) or c(harge). */
  kind: '%a',
  generationOf: '%d+',
  amountOf: '%d+',
  actualOf: '%d+',
  committedOf: '%d+',
  refundedOf: '%d+',
  uncoveredOf: '%d+',
  lateOf: '%d',
  createdAtMs: '%d+',
  expiresAtMs: '%d+',
  endedAtMs: '%d+',
  /** The thresholds that it crossed: a list for each entry, or '-'. */
  crossed: '%S+',
};

/** What stays as it was: the entries in which it counts (budget.entries.ts), and the text of its caller. */
const FIXED = {
  nonceOf: '%S+',
  openUntilOf: '%d+',
  fieldsOf: 'c|%S+',
  limitsOf: '%S+',
  thresholdsOf: '%S+',
  endsOf: '%S+',
  inheritedOf: '%S+',
  metaOf: '.*',
};

type Word = keyof typeof HEAD | keyof typeof FIXED;

/** The words of a record, or all of its fixed part as one text. */
export type RecordPart = Word | 'fixed';

const WORDS = [...Object.keys(HEAD), ...Object.keys(FIXED)];

/** Where each word stands. */
const AT = Object.fromEntries(WORDS.map((word, at) => [word, at])) as Record<Word, number>;

/** Lua that sets locals to parts of `record`, or to nil if it cannot be read. */
export function readRecord(...parts: readonly RecordPart[]): string {
  const isRead = (name: string): boolean => parts.includes(name as RecordPart);
  const patterns = (words: object): string =>
    Object.entries(words as Record<string, string>)
      .map(([word, pattern]) => (isRead(word) ? `(${pattern})` : pattern))
      .join(' ');
  const fixed = isRead('fixed') ? `(${patterns(FIXED)})` : patterns(FIXED);
  const names = [...Object.keys(HEAD), 'fixed', ...Object.keys(FIXED)].filter(isRead);
  const head = patterns(HEAD);
  const pattern = head.length + fixed.length > 110 ? `'^${head}' ..\n  ' ${fixed}$'` : `'^${head} ${fixed}$'`;
  return `local ${inLines(names)} =\n  string.match(record or '',\n  ${pattern})`;
}

/** Lua that joins texts by spaces. It makes one text, which `table.concat` does by a table more. */
export const joined = (...texts: string[]): string => texts.join(` .. ' ' ..\n  `);

/** Lua that makes a record anew, of what it has come to and of what stays. */
export const recordOf = (endedAtMs: string, ...head: string[]): string =>
  joined(...head, 'createdAtMs', 'expiresAtMs', endedAtMs, 'crossed', 'fixed');

/** A record that was read. */
export class StoredRecord {
  readonly #words: readonly string[];

  constructor(packed = '') {
    this.#words = packed.split(' ');
    const isComplete = this.#words.length >= WORDS.length && this.text('fieldsOf').startsWith('c|');
    if (this.text('version') !== HEAD.version || !isComplete) throw unreadableValue(packed);
  }

  text(word: Word): string {
    return this.#words[AT[word]] as string;
  }

  number(word: Word): number {
    return Number(this.text(word));
  }

  /** The last word is any text. */
  get meta(): string {
    return this.#words.slice(AT.metaOf).join(' ');
  }
}
