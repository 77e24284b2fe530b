import { refuseAborted } from '../aborted.js';
import { type Clock, systemClock } from '../clock.js';
import type {
  BurnReply,
  CallOptions,
  CreateReply,
  PeekReply,
  SecretBackend,
  SettleReply,
  StatusReply,
  StoredSecret,
  ViewReply,
} from './secret.backend.js';
import { SecretError } from './secret.errors.js';
import type { SecretStatus } from './secret.types.js';
import { MAX_LEASES } from './secret.values.js';

const SWEEP_EVERY_MS = 60_000;

type Content = Pick<StoredSecret, 'payload' | 'text' | 'meta'>;

/** A secret, and its tombstone once `content` is gone. */
interface Entry {
  readonly proof: string;
  readonly expiresAtMs: number | null;
  content: Content | undefined;
  viewsRemaining: number | null;
  viewedAtMs: number | null;
  /** What remained after each counted view, by viewTag. */
  readonly views: Map<string, number>;
  /** When each pending view lapses, by viewTag. */
  readonly leases: Map<string, number>;
  /** When it was burned. */
  burnedAtMs: number | undefined;
  burnId: string | undefined;
  releasedTag: string | undefined;
}

type State = Extract<SecretStatus, { ok: true }>['state'];

/** Secrets of one process, with the behaviour of the Redis backend. */
export class MemorySecretBackend implements SecretBackend {
  private readonly entries = new Map<string, Entry>();
  #sweepAtMs = -Infinity;

  constructor(
    private readonly config: { readonly tombstoneMs: number },
    private readonly clock: Clock = systemClock,
  ) {}

  async create(secret: StoredSecret, { signal }: CallOptions): Promise<CreateReply> {
    refuseAborted(signal, SecretError);
    this.#sweep();
    const { tag, proof, payload, text, meta, views, ttlMs } = secret;
    const taken = this.#find(tag);
    if (taken) return taken.proof === proof ? { expiresAtMs: taken.expiresAtMs } : 'conflict';
    const expiresAtMs = ttlMs === null ? null : this.clock.now() + ttlMs;
    this.entries.set(tag, {
      ...{ proof, expiresAtMs, content: { payload, text, meta }, viewsRemaining: views },
      ...{ views: new Map(), leases: new Map() },
      ...{ viewedAtMs: null, burnedAtMs: undefined, burnId: undefined, releasedTag: undefined },
    });
    return { expiresAtMs };
  }

  async view(
    { tag, viewTag, leaseMs }: { tag: string; viewTag: string; leaseMs: number },
    { signal }: CallOptions,
  ): Promise<ViewReply> {
    refuseAborted(signal, SecretError);
    const entry = this.#find(tag);
    if (!entry) return 'not_found';
    const state = stateOf(entry);
    if (state === 'burned') return entry.views.has(viewTag) ? 'burned-by-you' : state;
    if (state === 'expired' || !entry.content) return 'expired';
    const { content } = entry;
    const counted = entry.views.get(viewTag);
    if (counted !== undefined) return { ...shown(entry, content), viewsRemaining: counted, replayed: true };
    if (
      state === 'leased' ||
      (leaseMs > 0 && entry.viewsRemaining !== null && entry.leases.size >= MAX_LEASES)
    )
      return 'leased';
    this.#count(entry, viewTag, leaseMs);
    return { ...shown(entry, content), burned: entry.burnedAtMs !== undefined };
  }

  async peek(tag: string, { signal }: CallOptions): Promise<PeekReply> {
    refuseAborted(signal, SecretError);
    const entry = this.#find(tag);
    if (!entry) return 'not_found';
    const state = stateOf(entry);
    if (state !== 'live') return state;
    const { viewsRemaining, expiresAtMs, content } = entry;
    return { viewsRemaining, expiresAtMs, meta: content?.meta ?? '' };
  }

  async burn(
    { tag, proof, burnId }: { tag: string; proof?: string; burnId: string },
    { signal }: CallOptions,
  ): Promise<BurnReply> {
    refuseAborted(signal, SecretError);
    const entry = this.#find(tag);
    if (!entry || (proof !== undefined && proof !== entry.proof)) return 'not_found';
    const state = stateOf(entry);
    if (state === 'expired') return state;
    if (state === 'burned') return entry.burnId === burnId ? 'burned' : 'burned-before';
    entry.burnId = burnId;
    burn(entry, this.clock.now());
    return 'burned';
  }

  async status(
    { tag, proof }: { tag: string; proof: string },
    { signal }: CallOptions,
  ): Promise<StatusReply> {
    refuseAborted(signal, SecretError);
    const entry = this.#find(tag);
    if (entry?.proof !== proof) return 'not_found';
    const { viewsRemaining, expiresAtMs, viewedAtMs } = entry;
    return { state: stateOf(entry), viewsRemaining, expiresAtMs, viewedAtMs };
  }

  async confirm(
    { tag, viewTag }: { tag: string; viewTag: string },
    { signal }: CallOptions,
  ): Promise<SettleReply> {
    refuseAborted(signal, SecretError);
    const entry = this.#find(tag);
    if (!entry) return 'not_found';
    const { viewsRemaining } = entry;
    if (viewsRemaining === null && stateOf(entry) === 'live') return { viewsRemaining, burned: false };
    if (!entry.views.has(viewTag)) return 'not_found';
    if (entry.leases.delete(viewTag) && viewsRemaining === 0 && entry.leases.size === 0)
      burn(entry, this.clock.now());
    return { viewsRemaining, burned: entry.burnedAtMs !== undefined };
  }

  async release(
    { tag, viewTag }: { tag: string; viewTag: string },
    { signal }: CallOptions,
  ): Promise<SettleReply> {
    refuseAborted(signal, SecretError);
    const entry = this.#find(tag);
    if (!entry) return 'not_found';
    if (entry.viewsRemaining === null)
      return stateOf(entry) === 'live' ? { viewsRemaining: null, burned: false } : 'not_found';
    if (entry.leases.delete(viewTag)) {
      entry.viewsRemaining++;
      entry.views.delete(viewTag);
      entry.releasedTag = viewTag;
    } else if (entry.releasedTag !== viewTag || entry.views.has(viewTag)) return 'not_found';
    return { viewsRemaining: entry.viewsRemaining, burned: false };
  }

  #count(entry: Entry, viewTag: string, leaseMs: number): void {
    const nowMs = this.clock.now();
    entry.viewedAtMs = nowMs;
    if (entry.viewsRemaining === null) return;
    entry.viewsRemaining--;
    entry.views.set(viewTag, entry.viewsRemaining);
    if (leaseMs > 0) entry.leases.set(viewTag, Math.min(nowMs + leaseMs, entry.expiresAtMs ?? Infinity));
    if (entry.viewsRemaining === 0 && entry.leases.size === 0) burn(entry, nowMs);
  }

  /** A secret as it stands now: what time has done to it since the last look is done here. */
  #find(tag: string): Entry | undefined {
    const entry = this.entries.get(tag);
    if (!entry) return undefined;
    const nowMs = this.clock.now();
    const endedAtMs = settle(entry, nowMs);
    if (endedAtMs === undefined || nowMs < endedAtMs + this.config.tombstoneMs) return entry;
    this.entries.delete(tag);
    return undefined;
  }

  /** What nobody asks for again is let go within a minute of its end, as long as secrets are made. */
  #sweep(): void {
    const nowMs = this.clock.now();
    if (nowMs < this.#sweepAtMs) return;
    this.#sweepAtMs = nowMs + SWEEP_EVERY_MS;
    for (const tag of this.entries.keys()) this.#find(tag);
  }
}

/** Lets lapse what has lapsed and drops the content of what is over. Gives when it ended, if it has. */
function settle(entry: Entry, nowMs: number): number | undefined {
  const { leases, expiresAtMs } = entry;
  const lastLeaseMs = Math.max(...leases.values());
  for (const [viewTag, endMs] of leases) if (endMs <= nowMs) leases.delete(viewTag);
  const expired = expiresAtMs !== null && nowMs >= expiresAtMs;
  // Without views left, it ended when the last pending one lapsed.
  if (entry.burnedAtMs === undefined && entry.viewsRemaining === 0 && leases.size === 0)
    burn(entry, lastLeaseMs);
  if (expired) entry.content = undefined;
  return entry.burnedAtMs ?? (expired ? expiresAtMs : undefined);
}

function burn(entry: Entry, nowMs: number): void {
  entry.content = undefined;
  entry.viewsRemaining = 0;
  entry.leases.clear();
  entry.burnedAtMs = nowMs;
}

function stateOf({ burnedAtMs, content, viewsRemaining }: Entry): State {
  if (burnedAtMs !== undefined) return 'burned';
  if (!content) return 'expired';
  return viewsRemaining === 0 ? 'leased' : 'live';
}

/** A copy of the payload: a caller may write into what it is given. */
const shown = (
  { viewsRemaining, expiresAtMs }: Entry,
  { payload, text, meta }: Content,
): Extract<ViewReply, object> => ({
  ...{ payload: Buffer.from(payload), text, viewsRemaining, expiresAtMs, meta },
  ...{ burned: false, replayed: false },
});
