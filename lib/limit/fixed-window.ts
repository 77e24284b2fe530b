import type { LimitCheck, LimitOutcome } from './limit.backend.js';
import type { LimitRules } from './limit.policy.js';

/** What one identity has used of a limit until the window ends: one number, whatever the limit is. */
export class FixedWindow {
  #count = 0;
  #lastCall: string | undefined;
  #lastForgiven: string | undefined;

  constructor(readonly endsAtMs: number) {}

  /** Counts the call if it fits, and nothing otherwise. Without `commit` it only says whether it would. */
  decide({ policy, cost }: LimitCheck, callId: string, nowMs: number, commit: boolean): LimitOutcome {
    if (this.#lastCall === callId) return this.#allowed(policy.rules, nowMs);
    if (!this.#fits(policy.rules, cost)) return this.#denied(policy.rules, nowMs);
    if (commit) {
      this.#count += cost;
      this.#lastCall = callId;
    }
    return this.#allowed(policy.rules, nowMs);
  }

  /** What a call of cost 1 would find. */
  peek(rules: LimitRules, nowMs: number): LimitOutcome {
    return this.#fits(rules, 1) ? this.#allowed(rules, nowMs) : this.#denied(rules, nowMs);
  }

  forgive(amount: number, callId: string): void {
    if (this.#count === 0 || this.#lastForgiven === callId) return;
    this.#count = Math.max(0, this.#count - amount);
    this.#lastForgiven = callId;
  }

  #fits({ tempThreshold }: LimitRules, cost: number): boolean {
    return this.#count + cost < tempThreshold;
  }

  /** No longer than the window, also where the clock stepped back. */
  #leftMs({ tempWindowMs }: LimitRules, nowMs: number): number {
    return Math.min(this.endsAtMs - nowMs, tempWindowMs);
  }

  #allowed(rules: LimitRules, nowMs: number): LimitOutcome {
    const resetMs = this.#count > 0 ? this.#leftMs(rules, nowMs) : 0;
    return { status: 'allowed', shortCount: this.#count, longCount: this.#count, resetMs };
  }

  #denied(rules: LimitRules, nowMs: number): LimitOutcome {
    return {
      status: 'denied',
      scope: 'temp',
      reason: 'temp',
      retryAfterMs: this.#leftMs(rules, nowMs),
      shortCount: this.#count,
      longCount: this.#count,
      blocked: false,
    };
  }
}
