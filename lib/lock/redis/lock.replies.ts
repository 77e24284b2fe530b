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

export type AcquireReply =
  | {
      readonly status: 'granted';
      readonly fence: string;
      readonly expiresAtMs: number;
      /** The lock was handed to the caller before, or it has not waited. False: it has waited, and found the lock free. */
      readonly wasHanded: boolean;
    }
  | {
      readonly status: 'locked';
      readonly remainingMs: number;
      /** Orders the queue: the caller passes it again to keep its place. Empty if the caller does not wait. */
      readonly ticket: string;
      /** The caller's place in the queue, counted from 1, when it has just entered. 0 if it stood there before. */
      readonly place: number;
      /** The caller had claimed a key, and the key went to the next waiter, because another key was still locked. */
      readonly passedOn: boolean;
      /** The caller's process was passed over, because it had missed a claim. It is in its places again. */
      readonly cameBack: boolean;
      /** The caller was not in the queue any more, and has entered it again. */
      readonly dropped: boolean;
      /** The lockId of the waiter of the caller's process that the lock is handed to now. Empty if there is none. */
      readonly claimer: string;
      readonly handed: readonly HandedOver[];
    }
  | { readonly status: 'fence-overflow' };

const OWN_RECORD =
  /^\{"lockId":"[\w-]{22}","expiresAtMs":(\d+),"acquiredAtMs":\d+,"key":".*","fence":"(\d{15})"(?:,"keys":\[.*\])?\}(!?)$/s;

/** Reads the reply of both scripts that acquire. */
export const decodeAcquire =
  (script: string) =>
  (reply: unknown): AcquireReply => {
    if (reply === -1) return { status: 'fence-overflow' };
    if (Array.isArray(reply) && typeof reply[0] === 'number' && typeof reply[1] === 'string') {
      const [remainingMs, ticket, place, passedOn, cameBack, dropped, claimer, ...handed] = reply as [
        ...[number, string, number, number, number, number, string],
        ...unknown[],
      ];
      return {
        status: 'locked',
        remainingMs,
        ticket,
        place,
        passedOn: passedOn === 1,
        cameBack: cameBack === 1,
        dropped: dropped === 1,
        claimer,
        handed: handedOver(handed, script),
      };
    }
    const [, expiresAtMs, fence, found] = (typeof reply === 'string' && OWN_RECORD.exec(reply)) || [];
    if (!expiresAtMs || !fence) return unexpectedReply(script, reply);
    return { status: 'granted', fence, expiresAtMs: Number(expiresAtMs), wasHanded: found === '' };
  };
