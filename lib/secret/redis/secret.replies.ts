import { unexpectedReply } from '../../script/define-script.js';
import type { SecretFacts } from '../secret.backend.js';
import type { SecretEnd } from '../secret.types.js';

const viewsOf = (left: number): number | null => (left < 0 ? null : left);

export const timeOf = (ms: number): number | null => (ms === 0 ? null : ms);

type Text = string | Buffer;

type TellFields = [Text, number, number, number, number, number, Text, number, Text];

/** Decodes the nine fields of `tell()`, with which a reply begins. */
export function decodeTell<Outcome extends string>(
  script: string,
  reply: unknown,
  outcomes: readonly Outcome[],
): SecretFacts & { outcome: Outcome } {
  if (!Array.isArray(reply) || reply.length < 9) return unexpectedReply(script, reply);
  const [outcome, left, used, viewed, expires, failuresLeft, ended, endedAt, label] = reply as TellFields;
  if (!outcomes.includes(String(outcome) as Outcome)) return unexpectedReply(script, reply);
  return {
    outcome: String(outcome) as Outcome,
    viewsRemaining: viewsOf(left),
    viewsUsed: used,
    viewedAtMs: timeOf(viewed),
    expiresAtMs: timeOf(expires),
    failuresRemaining: viewsOf(failuresLeft),
    ended: (String(ended) || null) as SecretEnd | null,
    endedAtMs: timeOf(endedAt),
    label: String(label),
  };
}

export function decodeFacts<Outcome extends string>(
  script: string,
  reply: unknown,
  outcomes: readonly Outcome[],
): (SecretFacts & { outcome: Outcome }) | 'not_found' {
  return reply === 'not_found' ? reply : decodeTell(script, reply, outcomes);
}

export const LOOK_OUTCOMES = ['live', 'burned', 'expired', 'leased'] as const;
