import { createHash } from 'node:crypto';

/** The longest text that is normalized, in UTF-16 units. No e-mail address is that long. A longer text is hashed. */
const MAX_UNITS = 1_024;

/** How a text of a client is folded: a header keeps its case, and an account also loses its accents. */
export type Folding = 'text' | 'header' | 'account';

/** Printable ASCII without blanks. Most texts are this, and need nothing but lower case. */
const PLAIN = /^[\x21-\x7e]{1,1024}$/;

/**
 * Returns a text of a client in the form that it is counted by. What people, mail servers and databases take for the same
 * account becomes the same text: full-width or circled letters, capitals, invisible characters and blanks.
 *
 * The steps have this order because each is a way in otherwise: normalizing takes quadratic time in a row of combining
 * marks, and invisible characters would lift a short text over any bound.
 */
export function foldText(text: string, folding: Folding): string {
  if (PLAIN.test(text)) return folding === 'header' ? text : text.toLowerCase();
  const isAccount = folding === 'account';
  const bare = withoutNoise(text.toWellFormed(), isAccount);
  // Normalizing makes new blanks, and takes the marks of letters apart.
  const folded = withoutNoise(bare.normalize(isAccount ? 'NFKD' : 'NFKC'), isAccount);
  if (folding === 'header') return folded;
  // One letter may have two lower cases, as sigma has, but has one upper case.
  return (isAccount ? folded.toUpperCase() : folded).toLowerCase();
}

/** What is not seen: control, format and default-ignorable characters, and blanks. Ranges in hexadecimal. */
const NOISE =
  '0-20 7f-a0 ad 34f 600-605 61c 6dd 70f 890-891 8e2 115f-1160 1680 17b4-17b5 180b-180f 2000-200f 2028-202f 205f-206f 2800 3000 3164 fe00-fe0f feff ffa0 fff0-fffb';
const NOISE_BEYOND = '110bd 110cd 13430-1343f 1bca0-1bca3 1d173-1d17a e0000-e0fff';
/** Accents, which many collations ignore. The marks of Indic scripts are letters, so these are not among them. */
const MARKS = '300-36f 1ab0-1aff 1dc0-1dff 20d0-20ff fe20-fe2f';

const rangesOf = (text: string): [first: number, last: number][] =>
  text.split(' ').map((range) => {
    const [first = '', last = first] = range.split('-');
    return [parseInt(first, 16), parseInt(last, 16)];
  });

const IS_MARK = 1;
const IS_NOISE = 2;
const IS_HIGH_SURROGATE = 4;
const kindOfUnit = new Uint8Array(0x1_0000).fill(IS_HIGH_SURROGATE, 0xd800, 0xdc00);
for (const [first, last] of rangesOf(MARKS)) kindOfUnit.fill(IS_MARK, first, last + 1);
for (const [first, last] of rangesOf(NOISE)) kindOfUnit.fill(IS_NOISE, first, last + 1);
const noiseBeyond = rangesOf(NOISE_BEYOND);

/** The units that are kept, until they are hashed or become a text. */
const kept = new Uint16Array(8_192);

/** Returns the text without noise, or its hash if that is too long. Takes linear time, also for a megabyte of marks. */
function withoutNoise(text: string, dropsMarks: boolean): string {
  const lastKept = dropsMarks ? 0 : IS_MARK;
  let hash: ReturnType<typeof createHash> | undefined;
  let length = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    const kind = kindOfUnit[unit] as number;
    if (kind > lastKept) {
      if (kind !== IS_HIGH_SURROGATE) continue;
      if (isNoiseBeyond(text.codePointAt(i) as number)) {
        i++;
        continue;
      }
    }
    if (length === kept.length) {
      (hash ??= createHash('sha256')).update(kept);
      length = 0;
    }
    kept[length++] = unit;
  }
  if (!hash && length === text.length && length <= MAX_UNITS) return text;
  const rest = kept.subarray(0, length);
  if (!hash && length <= MAX_UNITS) return String.fromCharCode(...rest);
  // Hexadecimal digits fold to themselves.
  return (hash ?? createHash('sha256')).update(rest).digest('hex');
}

const isNoiseBeyond = (codePoint: number): boolean =>
  noiseBeyond.some(([first, last]) => codePoint >= first && codePoint <= last);
