import { unexpectedReply } from '../../script/define-script.js';

/** A script has made a waiter the owner of a lock, until the waiter takes it or the claim lapses. */
export interface HandedOver {
  /** The index of the key in the keys of the call. */
  readonly key: number;
  /** The lockId of the waiter and its process. */
  readonly waiter: string;
}

export function handedOver(list: readonly unknown[], script: string): HandedOver[] {
  const handed: HandedOver[] = [];
  for (let i = 0; i < list.length; i += 2) {
    const [key, waiter] = [list[i], list[i + 1]];
    if (typeof key !== 'number' || typeof waiter !== 'string') return unexpectedReply(script, list);
    handed.push({ key: key - 1, waiter });
  }
  return handed;
}

export type ReleaseCode = 'released' | 'mismatch' | 'not_found' | 'expired';

export const RELEASE_CODES: Readonly<Record<number, ReleaseCode>> = {
  1: 'released',
  0: 'mismatch',
  [-1]: 'not_found',
  [-2]: 'expired',
};

export type ExtendReply =
  | { readonly code: 'extended'; readonly expiresAtMs: number }
  | { readonly code: Exclude<ReleaseCode, 'released'> };

export function decodeExtend(reply: unknown): ExtendReply {
  if (Array.isArray(reply) && reply[0] === 1 && typeof reply[1] === 'number')
    return { code: 'extended', expiresAtMs: reply[1] };
  const code = RELEASE_CODES[reply as number];
  if (!code || code === 'released') return unexpectedReply('lock-extend', reply);
  return { code };
}
