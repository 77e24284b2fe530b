import { Injectable, type OnApplicationShutdown } from '@nestjs/common';
import type { CallOptions } from '../core/validate.js';
import type { SecretBackend, SecretFacts, SettleReply, ViewReply } from './secret.backend.js';
import { invalidArgument, SecretError } from './secret.errors.js';
import type { ResolvedSecretOptions } from './secret.options.js';
import type {
  BurnResult,
  CreatedSecret,
  CreateSecretOptions,
  NotShown,
  NotShownReason,
  PeekResult,
  SecretMeta,
  SecretStatus,
  SettleResult,
  ShownSecret,
  ViewOptions,
  ViewResult,
  ViewsSoFar,
} from './secret.types.js';
import {
  attributed,
  createId,
  createReceipt,
  parseReceipt,
  tagOf,
  validateCall,
  validateCreate,
  validateId,
  validateReceipt,
  validateView,
} from './secret.validate.js';

/**
 * Secrets that open a limited number of times, or until a deadline, and are then deleted. Each operation is one atomic
 * step. Of many concurrent readers of a secret with n views exactly n get it, and the last view deletes it.
 *
 * SyncGuard counts views and deletes payloads. It does not encrypt. Encrypt before `create()`, with a key that Redis
 * never sees.
 *
 * @example
 * const { id } = await this.secrets.create({ payload: sealed, views: 1, ttlMs: hours(1) });
 * const secret = await this.secrets.view(id);
 * if (secret.ok) return open(secret.payload);
 */
@Injectable()
export class SecretService implements OnApplicationShutdown {
  // What is private is not shown by `util.inspect`.
  readonly #backend: SecretBackend;
  #isClosed = false;

  /** @internal The module creates the service. */
  constructor(
    backend: SecretBackend,
    private readonly options: ResolvedSecretOptions,
  ) {
    this.#backend = backend;
  }

  /**
   * Stores a secret.
   *
   * @throws SecretError InvalidArgument when an option is malformed
   * @throws SecretError SecretConflict when the id is taken
   */
  async create(secret: CreateSecretOptions): Promise<CreatedSecret> {
    const { id, ...checked } = validateCreate(secret, this.options);
    const { receipt, tag, proof } = createReceipt(tagOf(id));
    const reply = await attributed(this.#open.create({ ...checked, tag, proof }, secret));
    if (reply === 'conflict')
      throw new SecretError({
        code: 'SecretConflict',
        message: 'The id is taken by another secret, or by the tombstone of one.',
        hint: 'Leave out the id to get a random one.',
        context: { idHash: tag },
      });
    return {
      id,
      receipt,
      viewsRemaining: checked.views,
      expiresAtMs: reply.expiresAtMs,
    };
  }

  /**
   * Shows the secret and counts the view, or returns why it is not shown. Call it on POST only, because link previews
   * and crawlers send GET.
   *
   * @example
   * const secret = await secrets.view(id, { viewId: request.headers['idempotency-key'] });
   */
  async view(id: string, options: ViewOptions = {}): Promise<ViewResult> {
    const tag = tagOf(validateId(id));
    const { viewId, callId, leaseMs } = validateView(options);
    const reply = await attributed(
      this.#open.view({ tag, viewTag: tagOf(viewId), callId, leaseMs }, options),
    );
    if (reply === 'not_found') return this.#notShown(reply);
    switch (reply.outcome) {
      case 'shown':
        return { ...toShown(reply), ...(leaseMs > 0 ? { viewId } : {}) };
      // The caller knows the viewId of a counted view, so `uniform` does not hide the reason.
      case 'burned_by_you':
        return { ok: false, reason: 'burned', own: true };
      case 'failed':
        return { ok: false, reason: 'failed', own: true };
      case 'lease_needed':
        throw invalidArgument(
          'A secret with `maxFailures` can be shown on lease only.',
          'Call `view(id, { leaseMs })`, then `confirm()` or `release()`.',
        );
      default:
        return this.#notShown(reply.outcome);
    }
  }

  /**
   * Returns whether `view()` would show the secret to a new reader, or why not. Shows no payload and changes nothing.
   */
  async peek(id: string, options: CallOptions = {}): Promise<PeekResult> {
    const reply = await attributed(this.#open.peek(tagOf(validateId(id)), validateCall(options)));
    if (reply === 'not_found') return this.#notShown(reply);
    if (reply.outcome !== 'live')
      return { ...this.#notShown(reply.outcome), ...(this.options.uniform ? {} : viewsSoFar(reply)) };
    const { viewsRemaining, expiresAtMs, meta } = reply;
    return { ok: true, viewsRemaining, expiresAtMs, ...viewsSoFar(reply), ...parseMeta(meta) };
  }

  /**
   * Burns the secret, whether or not views are left, and ends its leases. Burning it again changes nothing.
   *
   * @example
   * const burned = await secrets.burn(receipt);
   * if (burned.ok && burned.leased > 0) warn('A reader had it open.');
   */
  async burn(idOrReceipt: string, options: CallOptions = {}): Promise<BurnResult> {
    const receipt = parseReceipt(idOrReceipt);
    const target = receipt ?? { tag: tagOf(validateId(idOrReceipt)) };
    const reply = await attributed(this.#open.burn({ ...target, burnId: createId() }, validateCall(options)));
    if (reply !== 'not_found' && reply.outcome === 'burned') return { ok: true, leased: reply.leasedAtBurn };
    // A receipt proves that the caller is the sender, who may know everything.
    if (reply === 'not_found' || (this.options.uniform && !receipt))
      return { ok: false, reason: 'not_found' };
    if (reply.outcome === 'expired') return { ok: false, reason: 'expired' };
    return { ok: true, leased: reply.leasedAtBurn, already: reply.ended ?? 'burned' };
  }

  /** Returns to the sender what has happened to the secret. */
  async status(receipt: string, options: CallOptions = {}): Promise<SecretStatus> {
    const reply = await attributed(this.#open.status(validateReceipt(receipt), validateCall(options)));
    if (reply === 'not_found') return { ok: false, reason: reply };
    const { outcome: state, viewsRemaining, expiresAtMs, ended, endedAtMs, leasedAtBurn } = reply;
    return {
      ...{ ok: true, state, viewsRemaining, expiresAtMs, ...viewsSoFar(reply), leasedAtBurn },
      ...(ended && endedAtMs !== null ? { ended, endedAtMs } : {}),
    };
  }

  /**
   * Counts a view on lease. Call it after the reader has opened the secret. A lease that lapses counts as a view too,
   * and with `maxFailures` also as a wrong try.
   */
  async confirm(id: string, viewId: string, options: CallOptions = {}): Promise<SettleResult> {
    return this.#settled(await attributed(this.#open.confirm(tagsOf(id, viewId), validateCall(options))));
  }

  /**
   * Takes back a view on lease, so that it is not counted. Call it after a wrong passphrase. With `maxFailures` this
   * counts as a wrong try.
   */
  async release(id: string, viewId: string, options: CallOptions = {}): Promise<SettleResult> {
    return this.#settled(await attributed(this.#open.release(tagsOf(id, viewId), validateCall(options))));
  }

  /** Nest calls this before the connection closes. */
  onApplicationShutdown(): void {
    this.#isClosed = true;
  }

  /** The backend, unless the app has shut down. In memory it would go on, where Redis cannot. */
  get #open(): SecretBackend {
    if (this.#isClosed)
      throw new SecretError({
        code: 'ServiceUnavailable',
        message: 'The app has shut down, so its secrets are closed.',
      });
    return this.#backend;
  }

  #notShown(reason: NotShownReason): NotShown {
    return { ok: false, reason: this.options.uniform ? 'not_found' : reason };
  }

  #settled(reply: SettleReply): SettleResult {
    // The caller knows the viewId of a view that was cut off, so `uniform` does not hide the reason.
    if (reply === 'not_found' || (reply.outcome === 'burned' && this.options.uniform)) return { ok: false };
    if (reply.outcome !== 'settled') return { ok: false, reason: 'burned' };
    const { viewsRemaining, ended } = reply;
    return { ok: true, viewsRemaining, burned: ended !== null, ...failuresOf(reply) };
  }
}

const tagsOf = (id: string, viewId: string): { tag: string; viewTag: string } => ({
  tag: tagOf(validateId(id)),
  viewTag: tagOf(validateId(viewId)),
});

function toShown(reply: Extract<ViewReply, { outcome: 'shown' }>): ShownSecret {
  const { payload, text, viewsRemaining, ended, expiresAtMs, meta, replayed } = reply;
  return {
    ok: true,
    payload: text ? payload.toString() : payload,
    viewsRemaining,
    burned: ended !== null,
    expiresAtMs,
    ...parseMeta(meta),
    ...(replayed ? { replayed } : {}),
  };
}

const viewsSoFar = ({ viewsUsed, viewedAtMs, ...facts }: SecretFacts): ViewsSoFar => ({
  ...{ viewsUsed, viewedAtMs, ...failuresOf(facts) },
});

const failuresOf = ({ failuresRemaining: left }: Partial<SecretFacts>): { failuresRemaining?: number } =>
  left === undefined ? {} : { failuresRemaining: left };

/** A meta that is no JSON is not ours. It is not quoted, nor is the error of `JSON.parse`, which quotes it. */
function parseMeta(json: string): { meta?: SecretMeta } {
  try {
    return json === '' ? {} : { meta: JSON.parse(json) as SecretMeta };
  } catch {
    throw new SecretError({
      code: 'Internal',
      message: 'The `meta` of this secret cannot be read.',
      hint: 'Look for another program that writes to the keys of secrets. `burn()` deletes this one.',
    });
  }
}
