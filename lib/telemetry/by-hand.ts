import { shownHash } from '../core/keys.js';
import { invalidOption } from '../core/validate.js';
import type { Emit, Feature, ForcedOperation } from './telemetry.types.js';

const MAX_NOTE_LENGTH = 200;

/** Who changes something by hand. */
export interface ByHand {
  /** Who it is, 1 to 200 characters. The change is then an event (`type: 'forced'`) and a line of the log. */
  by?: string | undefined;
}

/** Checks a text that is written to the log. */
export function note(name: string, value: unknown): string {
  if (typeof value === 'string' && value !== '' && value.length <= MAX_NOTE_LENGTH) return value;
  throw invalidOption(name, `a string of 1 to ${MAX_NOTE_LENGTH} characters`, value);
}

/** Returns who changes something, checked. */
export const byOf = ({ by }: ByHand): string | undefined => (by === undefined ? by : note('by', by));

export interface ForcedChange extends ByHand {
  readonly feature: Feature;
  readonly operation: ForcedOperation;
  readonly key?: string;
  /** In place of the key, where only its hash is known. */
  readonly keyHash?: string;
  readonly policy?: string | undefined;
  readonly reason?: string | undefined;
}

/** Tells the log and the listener of a change by hand, after it was made. Without a name and a reason it is a program's. */
export function tellForced(
  { feature, operation, key = '', keyHash, policy, by, reason }: ForcedChange,
  warn: (line: string) => void,
  emit: Emit | undefined,
): void {
  if (by === undefined && reason === undefined) return;
  const who = by === undefined ? '' : ` by ${JSON.stringify(by)}`;
  const why = reason === undefined ? '' : ` because ${JSON.stringify(reason)}`;
  warn(`CHANGED_BY_HAND: ${operation} of ${feature} ${keyHash ?? shownHash(key)}${who}${why}.`);
  const whose = keyHash === undefined ? { key } : { keyHash };
  emit?.({ feature, type: 'forced', result: 'ok', operation, reason, durationMs: 0, policy, by, ...whose });
}
