import type { LimitCheck, BackendDecision, LimitRules } from '../limit.backend.js';

/** The count of one identity in a window that is open. It is one number, however high the limit is. */
export class FixedWindow {
  #count = 0;
  #lastCall: string | undefined;
  #lastForgiven: string | undefined;

  constructor(readonly endsAtMs: number) {}

  /** Decides about a call, and counts it if it fits. Without `commit` it only decides. */
  decide({ policy, cost }: LimitCheck, callId: string, nowMs: number, commit: boolean): BackendDecision {
    if (this.#lastCall === callId) return this.#allowed(policy.rules, nowMs);
    if (!this.#fits(policy.rules, cost)) return this.#denied(policy.rules, nowMs);
    if (commit) {
      this.#count += cost;
      this.#lastCall = callId;
    }
    return this.#allowed(policy.rules, nowMs);
  }

  /** Returns the decision about a call of cost 1, without counting it. */
  peek(rules: LimitRules, nowMs: number): BackendDecision {
    return this.#fits(rules, 1) ? this.#allowed(rules, nowMs) : this.#denied(rules, nowMs);
  }

  forgive(amount: number, callId: string): void {
    if (this.#count === 0 || this.#lastForgiven === callId) return;
    this.#count = Math.max(0, this.#count - amount);
    this.#lastForgiven = callId;
  }

  #fits({ shortThreshold }: LimitRules, cost: number): boolean {
    return this.#count + cost < shortThreshold;
  }

  /** Returns what is left of the window. After the clock has stepped back it is still no longer than the window. */
  #leftMs({ shortWindowMs }: LimitRules, nowMs: number): number {
    return Math.min(this.endsAtMs - nowMs, shortWindowMs);
  }

  #allowed(rules: LimitRules, nowMs: number): BackendDecision {
    const resetMs = this.#count > 0 ? this.#leftMs(rules, nowMs) : 0;
    return { status: 'allowed', shortCount: this.#count, longCount: this.#count, resetMs };
  }

  #denied(rules: LimitRules, nowMs: number): BackendDecision {
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
