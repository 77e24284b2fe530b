import {
  type BackendDecision,
  countsIn,
  type LimitBackend,
  type LimitRules,
  type Subject,
} from './limit.backend.js';
import { type Meant, Remembered } from './remembered.js';

/**
 * Remembers what Redis has said last about the keys that were at least half full. While Redis does not answer, this process
 * counts from there, so that a client gains nothing by an outage.
 */
export class LastWords {
  readonly #words = new Remembered<{ readonly reply: BackendDecision; readonly atMs: number }>();

  constructor(private readonly now: () => number = () => performance.now()) {}

  hear(subjects: readonly Subject[], replies: readonly BackendDecision[]): void {
    for (const [i, { identity, policy }] of subjects.entries()) {
      const reply = replies[i] as BackendDecision;
      if (this.#words.size > 0) this.#words.delete(identity);
      if (isHalfFull(policy.rules, reply)) this.#words.set(identity, { reply, atMs: this.now() });
    }
  }

  /** Tells the fallback, once for each time that Redis has said something. */
  tell(subjects: readonly Subject[], fallback: LimitBackend): void {
    for (const subject of subjects) {
      const last = this.#words.get(subject.identity);
      if (!last) continue;
      this.#words.delete(subject.identity);
      fallback.goOnFrom?.(subject, last.reply, this.now() - last.atMs);
    }
  }

  forget(meant: Meant): void {
    this.#words.forget(meant);
  }
}

const isHalfFull = ({ tiers }: LimitRules, reply: BackendDecision): boolean =>
  reply.status === 'denied' || tiers.some(({ threshold }, i) => 2 * (countsIn(reply)[i] ?? 0) >= threshold);
