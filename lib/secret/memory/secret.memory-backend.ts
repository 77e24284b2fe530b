import { type Clock, systemClock } from '../../core/clock.js';
import { type CallOptions, MAX_DURATION_MS, refuseAborted } from '../../core/validate.js';
import type {
  Burn,
  BurnReply,
  Content,
  CreateReply,
  PeekReply,
  SecretBackend,
  SettleReply,
  StatusReply,
  StoredSecret,
  TakenView,
  View,
  ViewReply,
} from '../secret.backend.js';
import { SecretEntry } from './secret.entry.js';
import { SecretError } from '../secret.errors.js';
import { MAX_LEASES, type Receipt } from '../secret.validate.js';

/** How soon to look again where a timer fired too early, because the backend's clock is not that of the timers. */
const LOOK_AGAIN_MS = 1_000;

/** Secrets in the memory of one process, with the behaviour of the Redis backend. */
export class MemorySecretBackend implements SecretBackend {
  private readonly entries = new Map<string, SecretEntry>();
  /** A timer for each secret, so that its content is deleted on time even if no call comes. */
  private readonly timers = new Map<string, NodeJS.Timeout>();

  constructor(private readonly clock: Clock = systemClock) {}

  async create(secret: StoredSecret, { signal }: CallOptions): Promise<CreateReply> {
    refuseAborted(signal, SecretError);
    const { tag, proof } = secret;
    const taken = this.#find(tag);
    if (taken) return taken.proof === proof ? { expiresAtMs: taken.expiresAtMs } : 'conflict';
    const entry = new SecretEntry(secret, this.clock.now());
    this.entries.set(tag, entry);
    this.#arm(tag, entry);
    return { expiresAtMs: entry.expiresAtMs };
  }

  async view(view: View, options: CallOptions): Promise<ViewReply> {
    return this.#ask(view.tag, options, (entry) => this.#view(entry, view));
  }

  async peek(tag: string, options: CallOptions): Promise<PeekReply> {
    return this.#ask(tag, options, (entry) => {
      const { state } = entry;
      return state === 'live' ? { ...entry.tell(state), meta: entry.content?.meta ?? '' } : entry.tell(state);
    });
  }

  async burn({ tag, proof, burnId }: Burn, options: CallOptions): Promise<BurnReply> {
    return this.#ask(tag, options, (entry) => {
      const { state } = entry;
      if (proof !== undefined && proof !== entry.proof) return 'not_found';
      if (state === 'expired') return entry.tell(state);
      if (state === 'burned') return entry.tell(entry.burnId === burnId ? 'burned' : 'burned_before');
      entry.burnId = burnId;
      entry.burn('burned', this.clock.now());
      return entry.tell('burned');
    });
  }

  async status({ tag, proof }: Receipt, options: CallOptions): Promise<StatusReply> {
    return this.#ask(tag, options, (entry) =>
      proof === entry.proof ? entry.tell(entry.state) : 'not_found',
    );
  }

  async confirm({ tag, viewTag }: TakenView, options: CallOptions): Promise<SettleReply> {
    return this.#ask(tag, options, (entry) => {
      const { failed, views, leases } = entry;
      if (isUncounted(entry)) return entry.tell('settled');
      if (leases.delete(viewTag)) {
        if (entry.viewsRemaining === null) entry.confirmedTag = viewTag;
        entry.burnIfOver(this.clock.now());
      } else if (
        entry.cutOff.has(viewTag) ||
        failed.has(viewTag) ||
        !(views.has(viewTag) || entry.confirmedTag === viewTag)
      )
        return lost(entry, viewTag);
      return entry.tell('settled');
    });
  }

  async release({ tag, viewTag }: TakenView, options: CallOptions): Promise<SettleReply> {
    return this.#ask(tag, options, (entry) => {
      const lease = entry.leases.get(viewTag);
      if (isUncounted(entry)) return entry.tell('settled');
      if (lease) {
        releaseView(entry, viewTag, lease.calls.size);
        entry.burnIfOver(this.clock.now());
      } else if (!wasReleased(entry, viewTag)) return lost(entry, viewTag);
      return entry.tell('settled');
    });
  }

  #ask<T>(tag: string, { signal }: CallOptions, replyOf: (entry: SecretEntry) => T): T | 'not_found' {
    refuseAborted(signal, SecretError);
    const entry = this.#find(tag);
    if (!entry) return 'not_found';
    const reply = replyOf(entry);
    this.#arm(tag, entry);
    return reply;
  }

  #view(entry: SecretEntry, { viewTag, callId, leaseMs }: View): ViewReply {
    const { state, content, maxFailures, views, leases } = entry;
    if (state === 'burned') return entry.tell(views.has(viewTag) ? 'burned_by_you' : state);
    if (state === 'expired' || !content) return entry.tell('expired');
    if (maxFailures !== null && leaseMs === 0) return entry.tell('lease_needed');
    if (entry.failed.has(viewTag)) return entry.tell('failed');
    const lease = leases.get(viewTag);
    const again = { viewsRemaining: views.get(viewTag) ?? entry.viewsRemaining, replayed: true };
    if (lease && maxFailures !== null && !lease.calls.has(callId)) {
      // Each call that is shown the secret is a try, except for a second send of the same call.
      if (entry.failures + entry.triesPending >= maxFailures) return entry.tell('leased');
      lease.calls.add(callId);
      entry.viewedAtMs = this.clock.now();
    }
    if (lease || views.has(viewTag) || (maxFailures !== null && entry.confirmedTag === viewTag))
      return { ...toShown(entry, content), ...again };
    const leasing = leaseMs > 0 && (entry.viewsRemaining !== null || maxFailures !== null);
    if (state === 'leased' || (leasing && leases.size >= MAX_LEASES)) return entry.tell('leased');
    this.#count(entry, viewTag);
    if (leasing) entry.lease(viewTag, callId, this.clock.now() + leaseMs);
    entry.burnIfOver(this.clock.now());
    return toShown(entry, content);
  }

  #count(entry: SecretEntry, viewTag: string): void {
    entry.viewedAtMs = this.clock.now();
    if (entry.viewsRemaining !== null) {
      entry.viewsRemaining--;
      entry.views.set(viewTag, entry.viewsRemaining);
    } else if (entry.maxFailures === null) {
      if (entry.lastTag === viewTag) return;
      entry.lastTag = viewTag;
    }
    entry.viewsUsed++;
  }

  /** Returns a secret after applying what time has done to it. */
  #find(tag: string): SecretEntry | undefined {
    const entry = this.entries.get(tag);
    if (!entry) return undefined;
    const nowMs = this.clock.now();
    entry.settle(nowMs);
    if (nowMs < entry.tombstoneEndMs()) return entry;
    this.entries.delete(tag);
    clearTimeout(this.timers.get(tag));
    this.timers.delete(tag);
    return undefined;
  }

  #arm(tag: string, entry: SecretEntry, soonestMs = 0): void {
    clearTimeout(this.timers.get(tag));
    const dueAtMs = entry.dueAtMs();
    const delayMs = Math.min(Math.max(dueAtMs - this.clock.now(), soonestMs), MAX_DURATION_MS);
    this.timers.set(tag, setTimeout(() => this.#fired(tag, dueAtMs), delayMs).unref());
  }

  #fired(tag: string, dueAtMs: number): void {
    const entry = this.#find(tag);
    if (entry) this.#arm(tag, entry, this.clock.now() < dueAtMs ? LOOK_AGAIN_MS : 0);
  }
}

const toShown = (entry: SecretEntry, content: Content): Extract<ViewReply, { outcome: 'shown' }> => ({
  ...entry.tell('shown'),
  ...content,
  payload: Buffer.from(content.payload), // A copy, because the caller may write into it.
  replayed: false,
});

/** Returns whether a secret counts neither views nor failures, so that nothing can be confirmed or released. */
const isUncounted = (entry: SecretEntry): boolean =>
  entry.viewsRemaining === null && entry.maxFailures === null && entry.state === 'live';

function releaseView(entry: SecretEntry, viewTag: string, tries: number): void {
  entry.leases.delete(viewTag);
  entry.views.delete(viewTag);
  entry.viewsUsed--;
  if (entry.viewsRemaining !== null) entry.viewsRemaining++;
  if (entry.maxFailures === null) entry.releasedTag = viewTag;
  else {
    entry.failures += tries;
    entry.failed.set(viewTag, 'released');
  }
}

/** As the Lua function of this name. */
function lost(entry: SecretEntry, viewTag: string): SettleReply {
  if (entry.cutOff.has(viewTag)) return entry.tell('cut_off');
  return entry.ended?.how === 'burned' ? entry.tell('burned') : 'not_found';
}

/** Returns whether the view was released before, by the first send of the same call. */
const wasReleased = ({ maxFailures, failed, views, releasedTag }: SecretEntry, viewTag: string): boolean =>
  maxFailures === null ? !views.has(viewTag) && releasedTag === viewTag : failed.get(viewTag) === 'released';
