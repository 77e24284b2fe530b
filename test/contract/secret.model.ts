import * as fc from 'fast-check';
import { SecretError } from '../../lib/secret/secret.errors.js';
import type { SecretService } from '../../lib/secret/secret.service.js';

/**
 * The model's time goes in ticks; deadlines lie half a tick off, so that the milliseconds which pass on a real
 * server decide nothing.
 */
export const TICK_MS = 20_000;
const halfTickOff = (ticks: number): number => ticks * TICK_MS - TICK_MS / 2;

/** What a command came to, for a comparison. */
type Outcome = Record<string, unknown>;
type Call = (secrets: SecretService, prefix: string, receipts: Map<string, string>) => Promise<Outcome>;

export type SecretCommand =
  | { type: 'advance'; ticks: number }
  | { type: 'create'; id: string; views: number | undefined; ticks: number | undefined; call: Call }
  | { type: 'view'; id: string; viewId: string; lease: number | undefined; call: Call }
  | { type: 'confirm' | 'release'; id: string; viewId: string; call: Call }
  | { type: 'peek' | 'burn' | 'status'; id: string; call: Call };

const id = fc.constantFrom('a', 'b');
const viewId = fc.constantFrom('v1', 'v2', 'v3', 'v4');
const ticks = fc.integer({ min: 1, max: 10 });
const some = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> => fc.option(value, { nil: undefined });

/** Without the instants, which differ between a model and a server. */
const facts = ({ expiresAtMs, ...rest }: Outcome): Outcome => ({ ...rest, expires: expiresAtMs !== null });

const advance = fc.record({ type: fc.constant('advance' as const), ticks: fc.integer({ min: 1, max: 3 }) });
const create = fc
  .record({ id, views: some(fc.integer({ min: 1, max: 4 })), ticks: some(ticks) })
  .filter(({ views, ticks }) => views !== undefined || ticks !== undefined)
  .map((given) => ({
    ...{ type: 'create' as const, ...given },
    call: named(async (secrets, prefix, receipts) => {
      const ttlMs = given.ticks === undefined ? undefined : halfTickOff(given.ticks);
      const secret = { id: prefix + given.id, payload: `of ${given.id}`, views: given.views, ttlMs };
      try {
        const created = await secrets.create(secret as Parameters<SecretService['create']>[0]);
        receipts.set(given.id, created.receipt);
        return { viewsRemaining: created.viewsRemaining, expires: created.expiresAtMs !== null };
      } catch (error) {
        if (error instanceof SecretError) return { code: error.code };
        throw error;
      }
    }),
  }));
const view = fc.record({ id, viewId, lease: some(ticks) }).map((given) => ({
  ...{ type: 'view' as const, ...given },
  call: named(async (secrets, prefix) => {
    const lease = given.lease === undefined ? undefined : halfTickOff(given.lease);
    const result = await secrets.view(prefix + given.id, { viewId: given.viewId, leaseMs: lease });
    if (!result.ok) return { ...result };
    const { viewId: _viewId, ...shown } = result;
    return facts(shown);
  }),
}));
const settle = fc
  .record({ type: fc.constantFrom('confirm' as const, 'release' as const), id, viewId })
  .map((given) => ({
    ...given,
    call: named(async (secrets, prefix) => ({
      ...(await secrets[given.type](prefix + given.id, given.viewId)),
    })),
  }));
const peek = id.map((id) => ({
  ...{ type: 'peek' as const, id },
  call: named(async (secrets, prefix) => {
    const result = await secrets.peek(prefix + id);
    return result.ok ? facts({ ...result }) : { ...result };
  }),
}));
const burn = id.map((id) => ({
  ...{ type: 'burn' as const, id },
  call: named(async (secrets, prefix) => ({ ...(await secrets.burn(prefix + id)) })),
}));
const status = id.map((id) => ({
  ...{ type: 'status' as const, id },
  call: named(async (secrets, _, receipts) => {
    const receipt = receipts.get(id);
    if (receipt === undefined) return { ok: false, reason: 'not_found' };
    const result = await secrets.status(receipt);
    return result.ok ? { ...facts({ ...result }), viewedAtMs: result.viewedAtMs !== null } : { ...result };
  }),
}));

/** Two commands that are printed alike are alike. */
function named(call: Call): Call {
  return Object.assign(call, { [fc.toStringMethod]: () => '' });
}

export const secretCommands: fc.Arbitrary<SecretCommand[]> = fc.array(
  fc.oneof(
    { arbitrary: advance, weight: 2 },
    { arbitrary: create, weight: 4 },
    { arbitrary: view, weight: 8 },
    { arbitrary: settle, weight: 4 },
    { arbitrary: peek, weight: 2 },
    { arbitrary: burn, weight: 1 },
    { arbitrary: status, weight: 2 },
  ),
  { minLength: 1, maxLength: 60, size: 'max' },
);

interface Taken {
  readonly viewId: string;
  readonly remaining: number;
  /** When it stopped being pending; for a view that was counted at once, when it was. */
  settledAt: number;
}

interface Secret {
  readonly id: string;
  readonly views: number;
  readonly deadline: number;
  taken: Taken[];
  burnedAt: number;
  viewed: boolean;
  lastReleased: string | undefined;
}

/** It ends on no tick and no half tick. */
export const TOMBSTONE_MS = 3.75 * TICK_MS;

/** What secrets do, derived from the history of their views: nothing is decremented, stored or dropped. */
export class SecretModel {
  #nowMs = 0;
  readonly #secrets = new Map<string, Secret>();

  run(command: SecretCommand): Outcome {
    switch (command.type) {
      case 'advance':
        this.#nowMs += command.ticks * TICK_MS;
        return {};
      case 'create':
        return this.#create(command.id, command.views, command.ticks);
      case 'view':
        return this.#view(command.id, command.viewId, command.lease);
      case 'confirm':
        return this.#confirm(command.id, command.viewId);
      case 'release':
        return this.#release(command.id, command.viewId);
      default:
        return this.#look(command.type, command.id);
    }
  }

  #create(id: string, views = Infinity, ticks?: number): Outcome {
    if (this.#find(id)) return { code: 'SecretConflict' };
    const deadline = ticks === undefined ? Infinity : this.#nowMs + halfTickOff(ticks);
    this.#secrets.set(id, {
      ...{ id, views, deadline, taken: [], burnedAt: Infinity, viewed: false, lastReleased: undefined },
    });
    return { viewsRemaining: finite(views), expires: deadline < Infinity };
  }

  #view(id: string, viewId: string, lease?: number): Outcome {
    const secret = this.#find(id);
    if (!secret) return { ok: false, reason: 'not_found' };
    const state = this.#stateOf(secret);
    const mine = secret.taken.find((taken) => taken.viewId === viewId);
    if (state === 'burned' && mine) return { ok: false, reason: 'burned', own: true };
    if (state === 'burned' || state === 'expired' || (state === 'leased' && !mine))
      return { ok: false, reason: state };
    const shown = { ok: true, payload: `of ${id}`, expires: secret.deadline < Infinity };
    if (mine) return { ...shown, viewsRemaining: mine.remaining, burned: false, replayed: true };
    secret.viewed = true;
    if (secret.views === Infinity) return { ...shown, viewsRemaining: null, burned: false };
    const remaining = remainingOf(secret) - 1;
    const lapsesAt =
      lease === undefined ? this.#nowMs : Math.min(this.#nowMs + halfTickOff(lease), secret.deadline);
    secret.taken.push({ viewId, remaining, settledAt: lapsesAt });
    return { ...shown, viewsRemaining: remaining, burned: this.#stateOf(secret) === 'burned' };
  }

  #confirm(id: string, viewId: string): Outcome {
    const secret = this.#find(id);
    if (!secret) return { ok: false };
    if (secret.views === Infinity && this.#stateOf(secret) === 'live')
      return { ok: true, viewsRemaining: null, burned: false };
    const mine = secret.taken.find((taken) => taken.viewId === viewId);
    if (!mine) return { ok: false };
    if (this.#stateOf(secret) !== 'burned') mine.settledAt = Math.min(mine.settledAt, this.#nowMs);
    return { ok: true, ...this.#left(secret) };
  }

  #release(id: string, viewId: string): Outcome {
    const secret = this.#find(id);
    if (!secret) return { ok: false };
    const state = this.#stateOf(secret);
    if (secret.views === Infinity && state === 'live')
      return { ok: true, viewsRemaining: null, burned: false };
    const mine = secret.taken.find((taken) => taken.viewId === viewId);
    const pending = mine && mine.settledAt > this.#nowMs && state !== 'burned';
    if (pending) {
      secret.taken = secret.taken.filter((taken) => taken !== mine);
      secret.lastReleased = viewId;
    } else if (mine || secret.lastReleased !== viewId) return { ok: false };
    return { ok: true, viewsRemaining: this.#left(secret).viewsRemaining, burned: false };
  }

  #look(type: 'peek' | 'burn' | 'status', id: string): Outcome {
    const secret = this.#find(id);
    if (!secret) return { ok: false, reason: 'not_found' };
    const state = this.#stateOf(secret);
    const { viewsRemaining } = this.#left(secret);
    const expires = secret.deadline < Infinity;
    if (type === 'status') return { ok: true, state, viewsRemaining, expires, viewedAtMs: secret.viewed };
    if (type === 'peek')
      return state === 'live' ? { ok: true, viewsRemaining, expires } : { ok: false, reason: state };
    if (state === 'expired') return { ok: false, reason: state };
    if (state !== 'burned') secret.burnedAt = this.#nowMs;
    return { ok: true };
  }

  #left(secret: Secret): { viewsRemaining: number | null; burned: boolean } {
    const burned = this.#stateOf(secret) === 'burned';
    return { viewsRemaining: burned ? 0 : finite(remainingOf(secret)), burned };
  }

  #find(id: string): Secret | undefined {
    const secret = this.#secrets.get(id);
    return secret && this.#nowMs < Math.min(burnsAt(secret), secret.deadline) + TOMBSTONE_MS
      ? secret
      : undefined;
  }

  #stateOf(secret: Secret): 'live' | 'leased' | 'burned' | 'expired' {
    if (burnsAt(secret) <= Math.min(this.#nowMs, secret.deadline)) return 'burned';
    if (secret.deadline <= this.#nowMs) return 'expired';
    return remainingOf(secret) === 0 ? 'leased' : 'live';
  }
}

const finite = (views: number): number | null => (views === Infinity ? null : views);
const remainingOf = ({ views, taken }: Secret): number => views - taken.length;

/** By hand, or when all views are taken and none of them is pending any more. */
const burnsAt = (secret: Secret): number =>
  remainingOf(secret) > 0
    ? secret.burnedAt
    : Math.min(secret.burnedAt, Math.max(...secret.taken.map(({ settledAt }) => settledAt)));
