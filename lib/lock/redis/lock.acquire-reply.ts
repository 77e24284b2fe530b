import { unexpectedReply } from '../../script/define-script.js';
import { handedOver, type HandedOver } from './lock.replies.js';

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
