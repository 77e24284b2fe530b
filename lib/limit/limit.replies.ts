import { foreignValue } from '../redis/redis.errors.js';
import { unexpectedReply } from '../script/define-script.js';
import type { LimitOutcome } from './limit.backend.js';

// Reply to a check: "<ms> <what stands>", where what stands is the value of a block, or "ok", "window" or "busy"
// and the two counts; several of them joined by ";".

/** For scripts that reply 1. */
export function decodeDone(name: string): (reply: unknown) => void {
  return (reply) => {
    if (reply !== 1) unexpectedReply(name, reply);
  };
}

export function decodeOutcomes(reply: unknown): LimitOutcome[] {
  if (typeof reply !== 'string') return unexpectedReply('limit-check', reply);
  return reply.includes(';') ? reply.split(';').map(decodeOutcome) : [decodeOutcome(reply)];
}

export function decodePeek(reply: unknown): LimitOutcome {
  return decodeOutcomes(reply)[0] ?? unexpectedReply('limit-peek', reply);
}

function decodeOutcome(reply: string): LimitOutcome {
  const [ms, status, short, long, , reason] = reply.split(' ');
  const counts = { shortCount: Number(short), longCount: Number(long) };
  const retryAfterMs = Number(ms);
  switch (status) {
    case 'ok':
      return { status: 'allowed', ...counts, resetMs: retryAfterMs };
    case 'window':
      return { status: 'denied', scope: 'temp', reason: 'temp', retryAfterMs, ...counts, blocked: false };
    case 'busy':
      return { status: 'denied', scope: 'temp', reason: 'busy', retryAfterMs, ...counts, blocked: false };
    case 'temp':
    case 'long':
      return { status: 'denied', scope: status, reason: status, retryAfterMs, ...counts, blocked: true };
    case 'manual':
      return {
        status: 'denied',
        scope: status,
        reason: reason ? decodeURIComponent(reason) : status,
        retryAfterMs,
        ...counts,
        blocked: true,
      };
    default:
      throw foreignValue('the block is not a block');
  }
}
