import { foreignValue } from '../../redis/redis.errors.js';
import { unexpectedReply } from '../../script/define-script.js';
import type { BackendDecision } from '../limit.backend.js';

// The reply to a check is "<ms> <value of the block>", or "<ms> <word> <shortCount> <longCount>", where the word is "ok",
// "window" (denied until there is room in the window) or "busy". The replies of several limits are joined by ";".

/** Returns the decoder of a script that replies 1. */
export function decodeDone(name: string): (reply: unknown) => void {
  return (reply) => {
    if (reply !== 1) unexpectedReply(name, reply);
  };
}

export function decodeDecisions(reply: unknown): BackendDecision[] {
  if (typeof reply !== 'string') return unexpectedReply('limit-check', reply);
  return reply.includes(';') ? reply.split(';').map(decodeDecision) : [decodeDecision(reply)];
}

export function decodePeek(reply: unknown): BackendDecision {
  return decodeDecisions(reply)[0] ?? unexpectedReply('limit-peek', reply);
}

function decodeDecision(reply: string): BackendDecision {
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
      throw foreignValue('the block is not ours');
  }
}
