import * as fc from 'fast-check';
import { SecretError } from '../../lib/secret/secret.errors.js';
import type { SecretService } from '../../lib/secret/secret.service.js';

/**
 * The time of the model is in ticks. Deadlines are half a tick off, so that the milliseconds that pass on a
 * real server change no result.
 */
export const TICK_MS = 20_000;
const halfTickOff = (ticks: number): number => ticks * TICK_MS - TICK_MS / 2;

/** The answer to a command, for a comparison. */
type Outcome = Record<string, unknown>;
type Call = (secrets: SecretService, prefix: string, receipts: Map<string, string>) => Promise<Outcome>;

export type SecretCommand =
  | { type: 'advance'; ticks: number }
  | {
      type: 'create';
      id: string;
      views: number | undefined;
      ticks: number | undefined;
      maxFailures: number | undefined;
      label: string | undefined;
      call: Call;
    }
  | { type: 'view'; id: string; viewId: string; lease: number | undefined; call: Call }
  | { type: 'confirm' | 'release'; id: string; viewId: string; call: Call }
  | { type: 'peek' | 'burn' | 'status'; id: string; call: Call };

const id = fc.constantFrom('a', 'b');
const viewId = fc.constantFrom('v1', 'v2', 'v3', 'v4');
const ticks = fc.integer({ min: 1, max: 10 });
const some = <T>(value: fc.Arbitrary<T>): fc.Arbitrary<T | undefined> => fc.option(value, { nil: undefined });

/** Removes the instants, which differ between a model and a server. */
const facts = ({ expiresAtMs, viewedAtMs, endedAtMs, ...rest }: Outcome): Outcome => ({
  ...rest,
  ...(expiresAtMs === undefined ? {} : { expires: expiresAtMs !== null }),
  ...(viewedAtMs === undefined ? {} : { viewed: viewedAtMs !== null }),
  ...(endedAtMs === undefined ? {} : { endedAt: typeof endedAtMs }),
});

const advance = fc.record({ type: fc.constant('advance' as const), ticks: fc.integer({ min: 1, max: 3 }) });
const create = fc
  .record({
    ...{ id, views: some(fc.integer({ min: 1, max: 4 })), ticks: some(ticks) },
    ...{ maxFailures: some(fc.integer({ min: 1, max: 3 })), label: some(fc.constantFrom('', 'l')) },
  })
  .filter(({ views, ticks }) => views !== undefined || ticks !== undefined)
  .map((given) => ({
    ...{ type: 'create' as const, ...given },
    call: named(async (secrets, prefix, receipts) => {
      const ttlMs = given.ticks === undefined ? undefined : halfTickOff(given.ticks);
      const { views, maxFailures, label } = given;
      const secret = { id: prefix + given.id, payload: `of ${given.id}`, views, ttlMs, maxFailures, label };
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
    const result = await secrets
      .view(prefix + given.id, { viewId: given.viewId, leaseMs: lease })
      .catch((error: unknown) => ({ ok: false, code: (error as SecretError).code }) as const);
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
    return facts({ ...result });
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
    return facts({ ...result });
  }),
}));

/** Two commands with the same text are equal. */
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

/** A view that was shown, until it is released. */
interface Taken {
  readonly viewId: string;
  readonly remaining: number;
  /** How many calls it was shown to while it was pending. */
  shows: number;
  /** When it lapses or was confirmed. For a view that was counted at once, when it was shown. */
  settledAt: number;
  confirmed: boolean;
}

interface Secret {
  readonly id: string;
  readonly views: number;
  readonly deadline: number;
  readonly maxFailures: number;
  taken: Taken[];
  /** Released views. On a secret that counts failures, each showing of them is one. */
  released: Taken[];
  burnedAt: number;
  /** The viewIds that were pending when burn() came. */
  cut: readonly string[];
  viewed: boolean;
  lastReleased: string | undefined;
  /** Only on a secret without a limit of views: the last view, and how many came before it. */
  last: string | undefined;
  uncounted: number;
}

/** It ends on no tick and on no half tick. */
export const TOMBSTONE_MS = 3.75 * TICK_MS;

/**
 * The behaviour of secrets, derived from the history of their views. The model decrements, stores and deletes
 * nothing.
 */
export class SecretModel {
  #nowMs = 0;
  readonly #secrets = new Map<string, Secret>();

  run(command: SecretCommand): Outcome {
    switch (command.type) {
      case 'advance':
        this.#nowMs += command.ticks * TICK_MS;
        return {};
      case 'create':
        return this.#create(command);
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

  #create({
    id,
    views = Infinity,
    ticks,
    maxFailures = Infinity,
  }: SecretCommand & { type: 'create' }): Outcome {
    if (this.#find(id)) return { code: 'SecretConflict' };
    const deadline = ticks === undefined ? Infinity : this.#nowMs + halfTickOff(ticks);
    this.#secrets.set(id, {
      ...{
        id,
        views,
        deadline,
        maxFailures,
        taken: [],
        released: [],
        burnedAt: Infinity,
        cut: [],
        viewed: false,
      },
      ...{ lastReleased: undefined, last: undefined, uncounted: 0 },
    });
    return { viewsRemaining: finite(views), expires: deadline < Infinity };
  }

  #view(id: string, viewId: string, lease?: number): Outcome {
    const secret = this.#find(id);
    if (!secret) return { ok: false, reason: 'not_found' };
    const state = this.#stateOf(secret);
    const counting = secret.maxFailures < Infinity;
    const mine = secret.taken.findLast((taken) => taken.viewId === viewId);
    if (state === 'burned' && mine && secret.views < Infinity)
      return { ok: false, reason: 'burned', own: true };
    if (state === 'burned' || state === 'expired') return { ok: false, reason: state };
    if (counting && lease === undefined) return { ok: false, code: 'InvalidArgument' };
    if (counting && this.#failuresOf(secret).some((failure) => failure.viewId === viewId))
      return { ok: false, reason: 'failed', own: true };
    const shown = { ok: true, payload: `of ${id}`, expires: secret.deadline < Infinity };
    const pending = mine !== undefined && this.#isPending(mine);
    if (counting && pending) {
      if (this.#triesLeft(secret) <= 0) return { ok: false, reason: 'leased' };
      mine.shows++;
    }
    // Without a limit of views only the last confirmed view is known.
    const known =
      pending || secret.views < Infinity || secret.taken.filter(({ confirmed }) => confirmed).at(-1) === mine;
    if (mine && known)
      return { ...shown, viewsRemaining: finite(mine.remaining), burned: false, replayed: true };
    if (state === 'leased') return { ok: false, reason: state };
    secret.viewed = true;
    if (secret.views === Infinity && !counting) {
      if (secret.last !== viewId) secret.uncounted++;
      secret.last = viewId;
      return { ...shown, viewsRemaining: null, burned: false };
    }
    const remaining = remainingOf(secret) - 1;
    const settledAt =
      lease === undefined ? this.#nowMs : Math.min(this.#nowMs + halfTickOff(lease), secret.deadline);
    secret.taken.push({ viewId, remaining, shows: 1, settledAt, confirmed: false });
    return { ...shown, viewsRemaining: finite(remaining), burned: this.#stateOf(secret) === 'burned' };
  }

  #confirm(id: string, viewId: string): Outcome {
    const secret = this.#find(id);
    if (!secret) return { ok: false };
    if (this.#countsNothing(secret)) return this.#settled(secret);
    const mine = secret.taken.findLast((taken) => taken.viewId === viewId);
    const lost = this.#lost(secret);
    if (!mine || secret.cut.includes(viewId)) return lost;
    if (this.#isPending(mine) && this.#stateOf(secret) !== 'burned') {
      mine.settledAt = this.#nowMs;
      mine.confirmed = true;
      // The order of confirming counts, and not the order of showing.
      secret.taken = [...secret.taken.filter((taken) => taken !== mine), mine];
    } else if (secret.maxFailures < Infinity) {
      if (this.#failuresOf(secret).includes(mine)) return lost;
      const last = secret.taken.filter(({ confirmed }) => confirmed).at(-1);
      if (secret.views === Infinity && mine !== last) return lost;
    }
    return this.#settled(secret);
  }

  #release(id: string, viewId: string): Outcome {
    const secret = this.#find(id);
    if (!secret) return { ok: false };
    if (this.#countsNothing(secret)) return this.#settled(secret);
    const mine = secret.taken.findLast((taken) => taken.viewId === viewId);
    if (mine && this.#isPending(mine) && this.#stateOf(secret) !== 'burned') {
      mine.settledAt = this.#nowMs;
      secret.taken = secret.taken.filter((taken) => taken !== mine);
      secret.released.push(mine);
      secret.lastReleased = viewId;
    } else if (secret.maxFailures < Infinity) {
      if (!secret.released.some((released) => released.viewId === viewId)) return this.#lost(secret);
    } else if (mine || secret.lastReleased !== viewId) return this.#lost(secret);
    return this.#settled(secret);
  }

  #look(type: 'peek' | 'burn' | 'status', id: string): Outcome {
    const secret = this.#find(id);
    if (!secret) return { ok: false, reason: 'not_found' };
    const state = this.#stateOf(secret);
    const { viewsRemaining } = this.#left(secret);
    const expires = secret.deadline < Infinity;
    const soFar = {
      viewsUsed: secret.taken.length + secret.uncounted,
      viewed: secret.viewed,
      ...this.#failuresRemaining(secret),
    };
    const ended = state === 'burned' ? { ended: this.#howEnded(secret), endedAt: 'number' } : {};
    const leased = secret.cut.length;
    if (type === 'status')
      return { ok: true, state, viewsRemaining, expires, ...soFar, ...ended, leasedAtBurn: leased };
    if (type === 'peek')
      return state === 'live'
        ? { ok: true, viewsRemaining, expires, ...soFar }
        : { ok: false, reason: state, ...soFar };
    if (state === 'expired') return { ok: false, reason: state };
    if (state === 'burned') return { ok: true, leased, already: this.#howEnded(secret) };
    secret.burnedAt = this.#nowMs;
    secret.cut = secret.taken.filter((taken) => this.#isPending(taken)).map(({ viewId }) => viewId);
    return { ok: true, leased: secret.cut.length };
  }

  /** The answer to a call that settles nothing. */
  #lost(secret: Secret): Outcome {
    const byHand = this.#stateOf(secret) === 'burned' && this.#howEnded(secret) === 'burned';
    return { ok: false, ...(byHand ? { reason: 'burned' } : {}) };
  }

  #settled(secret: Secret): Outcome {
    return { ok: true, ...this.#left(secret), ...this.#failuresRemaining(secret) };
  }

  #left(secret: Secret): { viewsRemaining: number | null; burned: boolean } {
    const burned = this.#stateOf(secret) === 'burned';
    return { viewsRemaining: burned ? 0 : finite(remainingOf(secret)), burned };
  }

  #failuresRemaining(secret: Secret): { failuresRemaining?: number } {
    if (secret.maxFailures === Infinity) return {};
    return { failuresRemaining: secret.maxFailures - shows(this.#failuresOf(secret)) };
  }

  /** Views that were released, and views that lapsed before the secret was burned by `burn()`. */
  #failuresOf(secret: Secret): Taken[] {
    return [...secret.released, ...lapsing(secret).filter(({ settledAt }) => settledAt <= this.#nowMs)];
  }

  #triesLeft(secret: Secret): number {
    const pending = secret.taken.filter((taken) => this.#isPending(taken));
    return secret.maxFailures - shows(this.#failuresOf(secret)) - shows(pending);
  }

  #isPending({ settledAt }: Taken): boolean {
    return settledAt > this.#nowMs;
  }

  #countsNothing(secret: Secret): boolean {
    return secret.views === Infinity && secret.maxFailures === Infinity && this.#stateOf(secret) === 'live';
  }

  #find(id: string): Secret | undefined {
    const secret = this.#secrets.get(id);
    if (!secret) return undefined;
    const endedAt = Math.min(burnsAt(secret), secret.deadline);
    const deadline = secret.deadline === Infinity ? 0 : secret.deadline;
    return this.#nowMs < Math.max(endedAt + TOMBSTONE_MS, deadline) ? secret : undefined;
  }

  #howEnded(secret: Secret): 'used' | 'burned' | 'failures' {
    if (secret.burnedAt < Math.min(usedAt(secret), failedAt(secret))) return 'burned';
    return failedAt(secret) <= usedAt(secret) ? 'failures' : 'used';
  }

  #stateOf(secret: Secret): 'live' | 'leased' | 'burned' | 'expired' {
    if (burnsAt(secret) <= Math.min(this.#nowMs, secret.deadline)) return 'burned';
    if (secret.deadline <= this.#nowMs) return 'expired';
    return remainingOf(secret) === 0 || this.#triesLeft(secret) <= 0 ? 'leased' : 'live';
  }
}

const finite = (views: number): number | null => (views === Infinity ? null : views);
const remainingOf = ({ views, taken }: Secret): number => views - taken.length;
const shows = (views: readonly Taken[]): number => views.reduce((sum, view) => sum + view.shows, 0);

/** Views that were neither confirmed nor released, where that is a failure. `burn()` ends their leases. */
const lapsing = ({ maxFailures, taken, burnedAt }: Secret): Taken[] =>
  maxFailures === Infinity
    ? []
    : taken.filter(({ confirmed, settledAt }) => !confirmed && settledAt <= burnedAt);

/** When all views are used and none of them is pending. */
const usedAt = (secret: Secret): number =>
  remainingOf(secret) > 0 ? Infinity : Math.max(...secret.taken.map(({ settledAt }) => settledAt));

/** When the last possible failure happened, or will happen if nothing else is settled. */
function failedAt(secret: Secret): number {
  const failures = [...secret.released, ...lapsing(secret)].sort((a, b) => a.settledAt - b.settledAt);
  const last = failures.find((_, i) => shows(failures.slice(0, i + 1)) >= secret.maxFailures);
  return last?.settledAt ?? Infinity;
}

const burnsAt = (secret: Secret): number => Math.min(secret.burnedAt, usedAt(secret), failedAt(secret));
