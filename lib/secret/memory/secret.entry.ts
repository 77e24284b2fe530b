import {
  type Content,
  LONGEST_TOMBSTONE_MS,
  type OutcomeReply,
  type StoredSecret,
} from '../secret.backend.js';
import type { SecretEnd } from '../secret.types.js';

interface Lease {
  readonly endMs: number;
  /** Where failures are counted: the calls that were shown this view, each of which is a try. Otherwise empty. */
  readonly calls: Set<string>;
}

/** A secret in the memory backend. Once `content` is gone it is the tombstone. */
export class SecretEntry {
  readonly proof: string;
  readonly expiresAtMs: number | null;
  readonly maxFailures: number | null;
  readonly label: string;
  readonly tombstoneMs: number;
  content: Content | undefined;
  viewsRemaining: number | null;
  viewsUsed = 0;
  viewedAtMs: number | null = null;
  /** The views that remained after each counted view, by viewTag. */
  readonly views = new Map<string, number>();
  readonly leases = new Map<string, Lease>();
  /** The viewTags that were on lease when it was burned. */
  cutOff: ReadonlySet<string> = new Set();
  failures = 0;
  /** How each failed view failed, by viewTag. */
  readonly failed = new Map<string, 'released' | 'lapsed'>();
  ended: { readonly how: SecretEnd; readonly atMs: number } | undefined;
  burnId: string | undefined;
  releasedTag: string | undefined;
  confirmedTag: string | undefined;
  /** The viewTag of the last counted view. Kept only if neither views nor failures are limited. */
  lastTag: string | undefined;

  constructor(secret: StoredSecret, nowMs: number) {
    const { proof, payload, text, meta, views, ttlMs, maxFailures, label, tombstoneMs } = secret;
    this.proof = proof;
    this.expiresAtMs = ttlMs === null ? null : nowMs + ttlMs;
    this.content = { payload, text, meta };
    this.viewsRemaining = views;
    this.maxFailures = maxFailures;
    this.label = label;
    this.tombstoneMs = tombstoneMs;
  }

  get state(): 'live' | 'leased' | 'burned' | 'expired' {
    if (this.ended) return 'burned';
    if (!this.content) return 'expired';
    return this.isFull ? 'leased' : 'live';
  }

  /** Returns whether no further view is possible, unless a pending one is released. */
  get isFull(): boolean {
    return this.viewsRemaining === 0 || this.failures + this.triesPending >= (this.maxFailures ?? Infinity);
  }

  /** As the Lua function of this name. */
  tell<Outcome extends string>(outcome: Outcome): OutcomeReply<Outcome> {
    const { viewsRemaining, viewsUsed, viewedAtMs, expiresAtMs, maxFailures, ended, label } = this;
    return {
      ...{ outcome, viewsRemaining, viewsUsed, viewedAtMs, expiresAtMs, label },
      ...(maxFailures === null ? {} : { failuresRemaining: Math.max(0, maxFailures - this.failures) }),
      ended: ended?.how ?? null,
      endedAtMs: ended?.atMs ?? null,
      leasedAtBurn: this.cutOff.size,
    } as OutcomeReply<Outcome>;
  }

  /** Applies what time has done. */
  settle(nowMs: number): void {
    let lapsedAtMs = 0;
    for (const [viewTag, { endMs, calls }] of this.leases) {
      if (endMs > nowMs) continue;
      this.leases.delete(viewTag);
      lapsedAtMs = Math.max(lapsedAtMs, endMs);
      if (this.maxFailures === null) continue;
      this.failures += calls.size;
      this.failed.set(viewTag, 'lapsed');
    }
    this.burnIfOver(lapsedAtMs);
    if (nowMs >= (this.expiresAtMs ?? Infinity)) this.content = undefined;
  }

  /** Burns the secret when its failures are used up, or when no view is left and none is pending. */
  burnIfOver(atMs: number): void {
    if (this.ended) return;
    if (this.failures >= (this.maxFailures ?? Infinity)) this.burn('failures', atMs);
    else if (this.viewsRemaining === 0 && this.leases.size === 0) this.burn('used', atMs);
  }

  burn(how: SecretEnd, atMs: number): void {
    this.content = undefined;
    this.viewsRemaining = 0;
    this.cutOff = new Set(this.leases.keys());
    this.leases.clear();
    this.ended = { how, atMs };
  }

  lease(viewTag: string, callId: string, endMs: number): void {
    const calls = new Set(this.maxFailures === null ? [] : [callId]);
    this.leases.set(viewTag, { endMs: Math.min(endMs, this.expiresAtMs ?? Infinity), calls });
  }

  /** Returns when a timer must delete the content or, once that is gone, the tombstone. */
  dueAtMs(): number {
    if (!this.content) return this.tombstoneEndMs();
    const lapses = [...this.leases.values()].map(({ endMs }) => endMs);
    return this.isFull && lapses.length > 0 ? Math.max(...lapses) : (this.expiresAtMs ?? Infinity);
  }

  /** Returns when the tombstone is deleted, as the Lua function of this name. */
  tombstoneEndMs(): number {
    const { tombstoneMs } = this;
    if (this.content) return Infinity;
    const endMs = this.ended?.atMs ?? this.expiresAtMs ?? Infinity;
    if (tombstoneMs === 0) return endMs;
    return Math.max(endMs + tombstoneMs, Math.min(this.expiresAtMs ?? 0, endMs + LONGEST_TOMBSTONE_MS));
  }

  get triesPending(): number {
    let tries = 0;
    for (const { calls } of this.leases.values()) tries += calls.size;
    return tries;
  }
}
