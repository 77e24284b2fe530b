import { foldText } from './client-text.js';
import { idText } from '../transport/request-parts.js';
import { type KeyPath, textIn } from './key-parts.js';
import type { Normalize } from './policy.types.js';

/** Stands for all values that name no account. No folded text has a blank. */
const NO_TEXT = 'no text';

/** Makes texts of the values that a policy counts by. */
export class KeyTexts {
  constructor(
    private readonly normalize: Normalize | undefined,
    private readonly warnOnce: (message: string) => void = () => {},
  ) {}

  /**
   * Returns the text that a value counts by, or undefined if it is missing. A value of the app counts unchanged. A list or an
   * object of a client names no account, and all of them count together: by their spelling a client could have any number of
   * counts, and none by the address alone.
   *
   * @param namesAccount - whether the value names an account, so that its accents do not count
   */
  of({ name, isOurs, isHeader }: KeyPath, value: unknown, namesAccount: boolean): string | undefined {
    if (value === undefined || value === null) return undefined;
    if (isOurs) return idText(value);
    const text = textIn(value);
    const folded =
      text === undefined
        ? undefined
        : foldText(text, isHeader ? 'header' : namesAccount ? 'account' : 'text');
    const normalized = this.normalize && this.#normalized(this.normalize, value, name, folded);
    if (normalized) return normalized;
    if (folded !== undefined) return folded || undefined;
    this.warnOnce(
      `RATE_LIMIT_NO_TEXT: A client sent a list or an object as \`${name}\`, where a limit expects a text. All such values count together. Refuse them before your handler reads them, or make texts of them by \`limit.normalize\`.`,
    );
    return NO_TEXT;
  }

  #normalized(normalize: Normalize, ...given: Parameters<Normalize>): string | undefined {
    try {
      const text: unknown = normalize(...given);
      if (text === undefined || typeof text === 'string') return text;
      throw new TypeError(`It returned a value of type ${typeof text}. It must return a text or undefined.`);
    } catch {
      this.warnOnce(
        `RATE_LIMIT_NORMALIZE_THREW: The function \`limit.normalize\` failed for a value of \`${given[1]}\`, so the value counts as without it. A client may send any value, also a list, an object or a number. Correct the function.`,
      );
      return undefined;
    }
  }
}
