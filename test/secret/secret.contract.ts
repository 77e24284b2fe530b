import { inspect } from 'node:util';
import * as fc from 'fast-check';
import { SecretError } from '../../lib/secret/secret.errors.js';
import { resolveSecretDefaults, type SecretOptions } from '../../lib/secret/secret.options.js';
import type { SecretBackend } from '../../lib/secret/secret.backend.js';
import { SecretService } from '../../lib/secret/secret.service.js';
import type { ShownSecret, ViewResult } from '../../lib/secret/secret.types.js';
import { secretCommands, SecretModel, TICK_MS, TOMBSTONE_MS } from './secret.model.js';

/** A backend under test, and the clock that ends its secrets. */
export interface SecretsUnderTest {
  backend(): SecretBackend;
  advance(ms: number): void;
  /** Everything that the backend stores, in pieces, to check what was deleted. */
  contents(): Promise<string>;
}

const HOUR_MS = 3_600_000;
const DAY_MS = 24 * HOUR_MS;

export function shown(result: ViewResult): ShownSecret {
  if (!result.ok) throw new Error(`the secret was not shown: ${result.reason}`);
  return result;
}

const codeOf = (promise: Promise<unknown>): Promise<string> =>
  promise.then(
    () => 'no error',
    (error: unknown) => (error instanceof SecretError ? error.code : `not a SecretError: ${String(error)}`),
  );

/** The contract of the SecretService, on every backend. */
export function describeSecrets(name: string, setUp: () => Promise<SecretsUnderTest>): void {
  describe(`SecretService on ${name}`, () => {
    let under: SecretsUnderTest;
    let secrets: SecretService;
    const service = (options: SecretOptions): SecretService => {
      const resolved = resolveSecretDefaults(options);
      return new SecretService(under.backend(), resolved);
    };

    beforeEach(async () => {
      under = await setUp();
      secrets = service({});
    });

    describe('views', () => {
      it('gives 100 readers of 7 views exactly 7 payloads, and burns with the last', async () => {
        const { id } = await secrets.create({ payload: 'seven', views: 7 });
        const results = await Promise.all(Array.from({ length: 100 }, () => secrets.view(id)));
        const seen = results.flatMap((result) => (result.ok ? [result] : []));
        expect(seen.map(({ payload }) => payload)).toStrictEqual(Array(7).fill('seven'));
        expect(seen.map(({ viewsRemaining }) => viewsRemaining).sort()).toStrictEqual([0, 1, 2, 3, 4, 5, 6]);
        expect(seen.filter(({ burned }) => burned).map(({ viewsRemaining }) => viewsRemaining)).toStrictEqual(
          [0],
        );
        const refused = results.filter(({ ok }) => !ok);
        expect(refused).toStrictEqual(Array(93).fill({ ok: false, reason: 'burned' }));
      });

      it('takes the payload out of the backend with the last view', async () => {
        const { id } = await secrets.create({ payload: 'precious', views: 1 });
        expect(await under.contents()).toContain('precious');
        expect(shown(await secrets.view(id))).toStrictEqual({
          ...{ ok: true, payload: 'precious', viewsRemaining: 0, burned: true, expiresAtMs: null },
        });
        expect(await under.contents()).not.toContain('precious');
      });

      it('knows a secret by an id of the user’s own, in either spelling, and never holds the id itself', async () => {
        const { id } = await secrets.create({ id: 'caf\u00e9:{7}*\n', payload: 'p', views: 2 });
        expect(id).toBe('caf\u00e9:{7}*\n');
        expect((await secrets.view('cafe\u0301:{7}*\n')).ok).toBe(true);
        expect(await under.contents()).not.toContain('{7}');
      });
    });

    describe('payloads', () => {
      const bytes = Buffer.from(Array.from({ length: 256 }, (_, byte) => byte));
      const documents = [
        '{"empty":[],"large":9007199254740993,"pi":3.14159265358979323846,"n":1e400}',
        'snow \u2603 and \u{1f512} and \0 and \r\n',
        '',
      ];

      it.each(documents)('gives %j back as it was', async (payload) => {
        const { id } = await secrets.create({ payload, views: 2 });
        expect(shown(await secrets.view(id)).payload).toBe(payload);
        expect(shown(await secrets.view(id)).payload).toBe(payload);
      });

      it.each([
        ['all 256 bytes', bytes],
        ['no bytes', Buffer.alloc(0)],
        ['1 MiB', Buffer.alloc(1_048_576, bytes)],
      ])('gives %s back as a Buffer, on each view', async (_, payload) => {
        const { id } = await secrets.create({ payload, views: 3 });
        for (let view = 0; view < 3; view++) {
          const { payload: seen } = shown(await secrets.view(id));
          expect(Buffer.isBuffer(seen) && seen.equals(payload)).toBe(true);
        }
      });

      it('gives back what it was given, not what became of that', async () => {
        const payload = Buffer.from('original');
        const creating = secrets.create({ payload, views: 2 });
        payload.fill('x');
        const { id } = await creating;
        const first = shown(await secrets.view(id)).payload as Buffer;
        expect(first.toString()).toBe('original');
        first.fill('y');
        expect(String(shown(await secrets.view(id)).payload)).toBe('original');
      });

      it('takes a Uint8Array', async () => {
        const { id } = await secrets.create({ payload: new Uint8Array([0, 255, 7]), views: 1 });
        expect(shown(await secrets.view(id)).payload).toStrictEqual(Buffer.from([0, 255, 7]));
      });

      it('refuses what is over maxBytes, and half characters', async () => {
        const small = service({ maxBytes: 4 });
        await expect(small.create({ payload: '\u2603\u2603', views: 1 })).rejects.toThrow(
          'payload must be at most 4 bytes, got 6.',
        );
        await expect(secrets.create({ payload: Buffer.alloc(1_048_577), views: 1 })).rejects.toThrow(
          'at most 1048576',
        );
        expect((await small.create({ payload: 'four', views: 1 })).viewsRemaining).toBe(1);
        const half = secrets.create({ payload: 'half \ud83d', views: 1 });
        await expect(half).rejects.toThrow(
          /^payload must be text without lone surrogates, which are .*ters\.$/,
        );
        expect(await codeOf(half)).toBe('InvalidArgument');
      });

      it('gives meta to peek and view, and keeps none of it after the burn', async () => {
        const meta = { name: 'r\u00e9sum\u00e9.pdf', big: [], size: 12 };
        const { id } = await secrets.create({ payload: 'p', views: 1, meta });
        expect(await secrets.peek(id)).toMatchObject({ meta });
        expect(await secrets.view(id)).toMatchObject({ meta });
        expect(await under.contents()).not.toContain('pdf');
      });
    });

    describe('time', () => {
      it('fixes the deadline at create, and no view moves it', async () => {
        const before = Date.now();
        const { id, expiresAtMs } = await secrets.create({ payload: 'p', views: 9, ttlMs: 90_001 });
        expect(expiresAtMs).toBeGreaterThanOrEqual(before + 90_001);
        expect(expiresAtMs).toBeLessThanOrEqual(Date.now() + 90_001);
        for (const viewId of ['a', 'a', undefined, 'b']) {
          under.advance(15_000);
          expect(shown(await secrets.view(id, { viewId })).expiresAtMs).toBe(expiresAtMs);
        }
        const lease = shown(await secrets.view(id, { leaseMs: HOUR_MS }));
        expect(lease.expiresAtMs).toBe(expiresAtMs);
        await secrets.release(id, lease.viewId!);
        under.advance(29_000);
        expect((await secrets.peek(id)).ok).toBe(true);
        under.advance(1_001);
        expect(await secrets.view(id)).toStrictEqual({ ok: false, reason: 'expired' });
      });

      it('takes the payload away at the deadline', async () => {
        const { id } = await secrets.create({ payload: 'precious', ttlMs: 1_000 });
        under.advance(1_001);
        await secrets.peek(id);
        expect(await under.contents()).not.toContain('precious');
      });

      it('tells reader and sender on day 6 that a link of 7 days was opened in the first hour', async () => {
        const { id, receipt, expiresAtMs } = await secrets.create({
          payload: 'p',
          views: 1,
          ttlMs: 7 * DAY_MS,
        });
        under.advance(HOUR_MS / 2);
        await secrets.view(id);
        const { viewedAtMs } = (await secrets.status(receipt)) as { viewedAtMs: number };
        expect(viewedAtMs - (expiresAtMs! - 7 * DAY_MS)).toBeLessThan(HOUR_MS);
        under.advance(6 * DAY_MS);
        expect(await secrets.view(id)).toStrictEqual({ ok: false, reason: 'burned' });
        expect(await secrets.peek(id)).toStrictEqual({
          ok: false,
          reason: 'burned',
          viewsUsed: 1,
          viewedAtMs,
        });
        expect(await secrets.status(receipt)).toMatchObject({ state: 'burned', ended: 'used', viewedAtMs });
        expect(await codeOf(secrets.create({ id, payload: 'q', views: 1 }))).toBe('SecretConflict');
        under.advance(DAY_MS);
        expect(await secrets.peek(id)).toStrictEqual({ ok: false, reason: 'not_found' });
      });

      it('remembers it until the deadline for a year at most', async () => {
        const { id, receipt } = await secrets.create({ payload: 'p', views: 1, ttlMs: 3_650 * DAY_MS });
        await secrets.burn(receipt);
        under.advance(364 * DAY_MS);
        expect(await secrets.status(receipt)).toMatchObject({ state: 'burned', ended: 'burned' });
        under.advance(DAY_MS + 1);
        expect(await secrets.status(receipt)).toStrictEqual({ ok: false, reason: 'not_found' });
        expect((await secrets.create({ id, payload: 'p', views: 1 })).id).toBe(id);
      });

      it('remembers one secret for its own tombstoneMs', async () => {
        const short = await secrets.create({ id: 'short', payload: 'p', ttlMs: 1_000, tombstoneMs: 5_000 });
        const long = await secrets.create({ payload: 'p', views: 1, tombstoneMs: 20 * DAY_MS });
        const none = await secrets.create({ id: 'none', payload: 'p', views: 1, tombstoneMs: 0 });
        await secrets.burn(long.receipt);
        await secrets.view(none.id);
        expect((await secrets.create({ id: 'none', payload: 'p', views: 1 })).id).toBe('none');
        under.advance(2_000);
        expect(await secrets.peek(short.id)).toMatchObject({ reason: 'expired' });
        under.advance(4_000);
        expect((await secrets.create({ id: 'short', payload: 'p', views: 1 })).id).toBe('short');
        under.advance(19 * DAY_MS);
        expect(await secrets.status(long.receipt)).toMatchObject({ state: 'burned' });
        under.advance(DAY_MS);
        expect(await secrets.status(long.receipt)).toStrictEqual({ ok: false, reason: 'not_found' });
      });

      it('remembers for the tombstoneMs of its own, whatever the service would do with a new one', async () => {
        const { id, receipt } = await service({ tombstoneMs: 0 }).create({ payload: 'p', views: 1 });
        await secrets.view(id);
        expect(await secrets.status(receipt)).toStrictEqual({ ok: false, reason: 'not_found' });
      });

      it('remembers nothing with tombstoneMs 0', async () => {
        secrets = service({ tombstoneMs: 0 });
        const burned = await secrets.create({ payload: 'p', views: 1, ttlMs: 7 * DAY_MS });
        const expired = await secrets.create({ payload: 'p', views: 1, ttlMs: 1_000 });
        await secrets.view(burned.id);
        expect(await secrets.status(burned.receipt)).toStrictEqual({ ok: false, reason: 'not_found' });
        under.advance(1_002);
        expect(await secrets.view(burned.id)).toStrictEqual({ ok: false, reason: 'not_found' });
        expect(await secrets.view(expired.id)).toStrictEqual({ ok: false, reason: 'not_found' });
      });
    });

    describe('a lease', () => {
      const lease = 60_000;
      const lend = async (id: string): Promise<string> =>
        shown(await secrets.view(id, { leaseMs: lease })).viewId!;

      it('counts when it is confirmed, once', async () => {
        const { id } = await secrets.create({ payload: 'precious', views: 1 });
        const viewId = await lend(id);
        expect(await secrets.view(id)).toStrictEqual({ ok: false, reason: 'leased' });
        expect(await under.contents()).toContain('precious');
        expect(await secrets.confirm(id, viewId)).toStrictEqual({
          ok: true,
          viewsRemaining: 0,
          burned: true,
        });
        expect(await under.contents()).not.toContain('precious');
        expect(await secrets.confirm(id, viewId)).toStrictEqual({
          ok: true,
          viewsRemaining: 0,
          burned: true,
        });
        expect(await secrets.release(id, viewId)).toStrictEqual({ ok: false });
        expect(await secrets.view(id)).toStrictEqual({ ok: false, reason: 'burned' });
      });

      it('counts when it lapses, and takes the payload away if it was the last', async () => {
        const { id } = await secrets.create({ payload: 'precious', views: 1 });
        const viewId = await lend(id);
        under.advance(lease + 1);
        expect(await secrets.release(id, viewId)).toStrictEqual({ ok: false });
        expect(await secrets.view(id)).toStrictEqual({ ok: false, reason: 'burned' });
        expect(await under.contents()).not.toContain('precious');
        expect(await secrets.confirm(id, viewId)).toStrictEqual({
          ok: true,
          viewsRemaining: 0,
          burned: true,
        });
      });

      it('is had by 100 at once, and no more', async () => {
        const { id } = await secrets.create({ payload: 'p', views: 200 });
        const results = await Promise.all(
          Array.from({ length: 120 }, () => secrets.view(id, { leaseMs: lease })),
        );
        expect(results.filter(({ ok }) => ok)).toHaveLength(100);
        expect(await secrets.view(id)).toMatchObject({ ok: true, viewsRemaining: 99 });
      });
    });

    describe('peek', () => {
      it('tells how many views were used, and when the last was, given back or not', async () => {
        const before = Date.now();
        const { id } = await secrets.create({ payload: 'p', views: 4 });
        await secrets.view(id);
        under.advance(60_000);
        const { viewId } = shown(await secrets.view(id, { leaseMs: 30_000 }));
        const peeked = async (): Promise<Record<string, unknown>> => ({ ...(await secrets.peek(id)) });
        const { viewedAtMs } = await peeked();
        expect(viewedAtMs).toBeGreaterThanOrEqual(before + 60_000);
        expect(await peeked()).toMatchObject({ viewsUsed: 2, viewsRemaining: 2 });
        await secrets.release(id, viewId!);
        expect(await peeked()).toMatchObject({ viewsUsed: 1, viewsRemaining: 3, viewedAtMs });
        await secrets.burn(id);
        expect(await peeked()).toStrictEqual({ ok: false, reason: 'burned', viewsUsed: 1, viewedAtMs });
      });
    });

    describe('burn', () => {
      it.each(['id', 'receipt'] as const)('takes the payload away by %s, again as once', async (by) => {
        const created = await secrets.create({ payload: 'precious', views: 5, ttlMs: HOUR_MS });
        expect(await secrets.burn(created[by])).toStrictEqual({ ok: true, leased: 0 });
        expect(await secrets.burn(created[by])).toStrictEqual({ ok: true, leased: 0, already: 'burned' });
        expect(await under.contents()).not.toContain('precious');
        expect(await secrets.view(created.id)).toStrictEqual({ ok: false, reason: 'burned' });
      });

      describe('while readers have it on lease', () => {
        const lend = async (id: string): Promise<string> =>
          shown(await secrets.view(id, { leaseMs: 60_000 })).viewId!;

        it.each([
          ['views', { views: 5 }],
          ['views and failures', { views: 5, maxFailures: 5 }],
          ['failures', { ttlMs: HOUR_MS, maxFailures: 5 }],
        ])('says how many, and their confirm says burned, where %s count', async (_, limits) => {
          const { id, receipt } = await secrets.create({ payload: 'p', ...(limits as { views: 5 }) });
          const [confirmed, open, other] = [await lend(id), await lend(id), await lend(id)];
          await secrets.confirm(id, confirmed);
          expect(await secrets.burn(receipt)).toStrictEqual({ ok: true, leased: 2 });
          const burned = { ok: false, reason: 'burned' };
          expect(await secrets.confirm(id, open)).toStrictEqual(burned);
          expect(await secrets.confirm(id, open)).toStrictEqual(burned);
          expect(await secrets.release(id, other)).toStrictEqual(burned);
          expect(await secrets.confirm(id, other)).toStrictEqual(burned);
          expect(await secrets.confirm(id, confirmed)).toMatchObject({ ok: true, burned: true });
          expect(await secrets.burn(receipt)).toStrictEqual({ ok: true, leased: 2, already: 'burned' });
          expect(await secrets.status(receipt)).toMatchObject({
            ...{ state: 'burned', ended: 'burned', viewsUsed: 3, leasedAtBurn: 2 },
          });
          under.advance(120_000);
          expect(await secrets.confirm(id, open)).toStrictEqual(burned);
          expect(await secrets.status(receipt)).toMatchObject({ leasedAtBurn: 2 });
        });

        it('tells them of it with `uniform` too, and nobody else', async () => {
          secrets = service({ uniform: true });
          const { id, receipt } = await secrets.create({ payload: 'p', views: 5 });
          const open = await lend(id);
          await secrets.burn(receipt);
          expect(await secrets.confirm(id, open)).toStrictEqual({ ok: false, reason: 'burned' });
          expect(await secrets.confirm(id, 'not mine')).toStrictEqual({ ok: false });
          expect(await secrets.release(id, 'not mine')).toStrictEqual({ ok: false });
        });

        it('lets neither confirm nor release settle anything where nothing is remembered', async () => {
          const { id, receipt } = await secrets.create({ payload: 'p', views: 5, tombstoneMs: 0 });
          const open = await lend(id);
          expect(await secrets.burn(receipt)).toStrictEqual({ ok: true, leased: 1 });
          expect(await secrets.confirm(id, open)).toStrictEqual({ ok: false });
          expect(await secrets.release(id, open)).toStrictEqual({ ok: false });
        });

        it('is never both unread by the sender and read by the reader, whichever comes first', async () => {
          for (let round = 0; round < 20; round++) {
            const { id, receipt } = await secrets.create({ payload: 'p', views: 1 });
            const viewId = await lend(id);
            const burning = (): Promise<unknown> => secrets.burn(receipt);
            const confirming = (): Promise<unknown> => secrets.confirm(id, viewId);
            const [burned, confirmed] =
              round % 2
                ? await Promise.all([burning(), confirming()])
                : (await Promise.all([confirming(), burning()])).reverse();
            expect([burned, confirmed]).toStrictEqual(
              round % 2
                ? [
                    { ok: true, leased: 1 },
                    { ok: false, reason: 'burned' },
                  ]
                : [{ ok: true, leased: 0, already: 'used' }, expect.objectContaining({ ok: true })],
            );
          }
        });
      });
    });

    describe('a receipt', () => {
      it('is refused as the id of a new secret, and is not shown by the error', async () => {
        const { receipt } = await secrets.create({ payload: 'p', views: 1 });
        const refused = secrets.create({ payload: 'p', views: 1, id: receipt });
        await expect(refused).rejects.toMatchObject({ code: 'InvalidArgument' });
        await expect(refused).rejects.not.toThrow(receipt);
      });

      it('tells used up from burned by hand and from too many failures, and when', async () => {
        const lend = async (id: string): Promise<string> =>
          shown(await secrets.view(id, { leaseMs: 60_000 })).viewId!;
        const of = (options: object): ReturnType<SecretService['create']> =>
          secrets.create({ payload: 'p', views: 2, ttlMs: HOUR_MS, ...options });
        const [byHand, released, lapsed, used] = [
          await of({}),
          await of({ maxFailures: 1 }),
          await of({ maxFailures: 1 }),
          await of({ views: 1 }),
        ];
        const lapsesAtMs = lapsed.expiresAtMs! - HOUR_MS + 60_000;
        await secrets.view(byHand.id);
        await secrets.burn(byHand.id);
        await secrets.release(released.id, await lend(released.id));
        await lend(lapsed.id);
        await lend(used.id);
        under.advance(30 * 60_000);
        const told = await Promise.all(
          [byHand, released, lapsed, used].map(({ receipt }) => secrets.status(receipt)),
        );
        expect(told).toMatchObject([
          { state: 'burned', ended: 'burned', viewsUsed: 1 },
          { state: 'burned', ended: 'failures', viewsUsed: 0, failuresRemaining: 0 },
          { state: 'burned', ended: 'failures', viewsUsed: 1, failuresRemaining: 0 },
          { state: 'burned', ended: 'used', viewsUsed: 1 },
        ]);
        // The time of the lapse counts, and not the time of the next read.
        const { endedAtMs } = told[2] as { endedAtMs: number };
        expect(endedAtMs - lapsesAtMs).toBeGreaterThanOrEqual(0);
        expect(endedAtMs - lapsesAtMs).toBeLessThan(60_000);
      });

      it('is not in the backend, in no part that could burn', async () => {
        const { id, receipt } = await secrets.create({ payload: 'p', views: 2 });
        const [, tag, random] = receipt.split('.');
        const { viewId } = shown(await secrets.view(id, { leaseMs: 60_000 }));
        const kept = await under.contents();
        expect(kept).toContain(tag);
        for (const mine of [random, receipt, viewId, id]) expect(kept).not.toContain(mine);
        // What stands there is no receipt.
        for (const [text] of kept.matchAll(/[\w-]{22}/g))
          expect(await secrets.burn(`receipt.${tag}.${text}`)).toStrictEqual({
            ok: false,
            reason: 'not_found',
          });
        expect(await secrets.burn(receipt)).toMatchObject({ ok: true });
      });

      it('does not open the secret, tell its id, or let itself be made up', async () => {
        const { id, receipt } = await secrets.create({ payload: 'p', views: 1 });
        expect(receipt).not.toContain(id);
        expect(await secrets.view(receipt)).toStrictEqual({ ok: false, reason: 'not_found' });
        const forged = receipt.slice(0, -22) + 'A'.repeat(22);
        for (const call of [secrets.status(forged), secrets.burn(forged)])
          expect(await call).toStrictEqual({ ok: false, reason: 'not_found' });
        expect((await secrets.peek(id)).ok).toBe(true);
        expect(await codeOf(secrets.status(id))).toBe('InvalidArgument');
      });
    });

    describe('create', () => {
      it('makes ids of 128 random bits', async () => {
        const created = await Promise.all(
          Array.from({ length: 50 }, () => secrets.create({ payload: 'p', views: 1 })),
        );
        const ids = new Set(created.map(({ id }) => id));
        expect(ids.size).toBe(50);
        for (const id of ids) expect(id).toMatch(/^[\w-]{22}$/);
      });
    });

    describe('with uniform', () => {
      it('a wrong id, a burned and an expired one look the same', async () => {
        secrets = service({ uniform: true });
        const burned = await secrets.create({ payload: 'p', views: 1 });
        const leased = await secrets.create({ payload: 'p', views: 1 });
        const expired = await secrets.create({ payload: 'p', ttlMs: 1_000 });
        await secrets.view(burned.id);
        await secrets.view(leased.id, { leaseMs: HOUR_MS });
        under.advance(1_001);
        for (const id of ['wrong', burned.id, expired.id, leased.id]) {
          expect(await secrets.view(id)).toStrictEqual({ ok: false, reason: 'not_found' });
          expect(await secrets.peek(id)).toStrictEqual({ ok: false, reason: 'not_found' });
        }
        for (const id of ['wrong', burned.id, expired.id])
          expect(await secrets.burn(id)).toStrictEqual({ ok: false, reason: 'not_found' });
        expect(await secrets.status(burned.receipt)).toMatchObject({ state: 'burned' });
        expect(await secrets.burn(burned.receipt)).toStrictEqual({ ok: true, leased: 0, already: 'used' });
      });

      it('still tells a reader whose own view burned it', async () => {
        secrets = service({ uniform: true });
        const { id } = await secrets.create({ payload: 'p', views: 1 });
        await secrets.view(id, { viewId: 'v' });
        expect(await secrets.view(id, { viewId: 'v' })).toStrictEqual({
          ok: false,
          reason: 'burned',
          own: true,
        });
      });
    });

    describe('with maxFailures', () => {
      const leaseMs = 60_000;
      const guess = (id: string, viewId?: string): Promise<ViewResult> =>
        secrets.view(id, { leaseMs, viewId });
      const wrong = async (id: string, viewId: string): Promise<unknown> => {
        await guess(id, viewId);
        return secrets.release(id, viewId);
      };
      const forms = [
        ['one view', { views: 1 }],
        ['many views', { views: 500 }],
        ['a time only', {}],
      ] as const;

      it.each(forms)('200 parallel wrong tries of %s see it 3 times, and it is burned', async (_, form) => {
        const { id, receipt } = await secrets.create({
          payload: 'precious',
          ttlMs: HOUR_MS,
          maxFailures: 3,
          ...form,
        });
        const attacker = async (): Promise<number> => {
          for (let seen = 0; ;) {
            const secret = await guess(id);
            if (secret.ok) {
              seen++;
              await secrets.release(id, secret.viewId!);
            } else if (secret.reason === 'burned') return seen;
          }
        };
        const seen = await Promise.all(Array.from({ length: 200 }, attacker));
        expect(seen.reduce((sum, n) => sum + n)).toBe(3);
        expect(await secrets.status(receipt)).toMatchObject({
          ...{ state: 'burned', ended: 'failures', viewsUsed: 0, failuresRemaining: 0 },
        });
        expect(await under.contents()).not.toContain('precious');
      });

      it.each(forms)('200 parallel calls of one viewId on %s are tries as well', async (_, form) => {
        const { id } = await secrets.create({ payload: 'p', ttlMs: HOUR_MS, maxFailures: 3, ...form });
        const results = await Promise.all(Array.from({ length: 200 }, () => guess(id, 'shared')));
        expect(results.filter(({ ok }) => ok)).toHaveLength(3);
        expect(results.filter((result) => !result.ok && result.reason === 'leased')).toHaveLength(197);
        expect(await secrets.release(id, 'shared')).toMatchObject({ burned: true, failuresRemaining: 0 });
      });

      it.each(forms)('of %s a lapsed lease is a failure, and burns with the last', async (_, form) => {
        const { id, receipt } = await secrets.create({
          payload: 'precious',
          ttlMs: HOUR_MS,
          maxFailures: 2,
          ...form,
        });
        shown(await guess(id, 'a'));
        under.advance(leaseMs + 1);
        expect(await secrets.status(receipt)).toMatchObject({ viewsUsed: 1, failuresRemaining: 1 });
        expect(await secrets.release(id, 'a')).toStrictEqual({ ok: false });
        expect(await secrets.confirm(id, 'a')).toStrictEqual({ ok: false });
        if ('views' in form && form.views === 1) return;
        expect(await guess(id, 'a')).toStrictEqual({ ok: false, reason: 'failed', own: true });
        shown(await guess(id, 'b'));
        under.advance(leaseMs + 1);
        expect(await secrets.peek(id)).toMatchObject({ ok: false, reason: 'burned', failuresRemaining: 0 });
        expect(await under.contents()).not.toContain('precious');
        expect(await secrets.status(receipt)).toMatchObject({ ended: 'failures' });
      });

      it('burns in the step of the last failure, which may be asked for again', async () => {
        const { id } = await secrets.create({ payload: 'precious', views: 2, maxFailures: 1 });
        const burned = { ok: true, viewsRemaining: 0, burned: true, failuresRemaining: 0 };
        expect(await wrong(id, 'a')).toStrictEqual(burned);
        expect(await under.contents()).not.toContain('precious');
        expect(await secrets.release(id, 'a')).toStrictEqual(burned);
        expect(await guess(id, 'a')).toStrictEqual({ ok: false, reason: 'burned' });
      });

      it('is shown on lease only', async () => {
        const { id } = await secrets.create({ payload: 'p', views: 1, maxFailures: 3 });
        await expect(secrets.view(id)).rejects.toMatchObject({ code: 'InvalidArgument' });
        await expect(secrets.view(id)).rejects.toThrow('view(id, { leaseMs })');
        expect(await secrets.peek(id)).toMatchObject({ ok: true, viewsUsed: 0 });
        await secrets.burn(id);
        expect(await secrets.view(id)).toStrictEqual({ ok: false, reason: 'burned' });
      });
    });

    describe('malformed calls', () => {
      const create = (more: object) => (): Promise<unknown> =>
        secrets.create({ payload: 'p', views: 1, ...more });
      const unreadable = {
        get m() {
          throw new Error('no');
        },
      };
      it.each<[string, () => Promise<unknown>]>([
        ['no views and no ttlMs', create({ views: undefined })],
        ['no options', () => secrets.create(undefined as never)],
        ['no payload', create({ payload: undefined })],
        ['a payload that is an object', create({ payload: { a: 1 } })],
        ['views: NaN', create({ views: NaN })],
        ['views: "3"', create({ views: '3' })],
        ['views: null', create({ views: null })],
        ['ttlMs: Infinity', create({ ttlMs: Infinity })],
        ['an empty id', create({ id: '' })],
        ['an id of 513 bytes', create({ id: 'x'.repeat(513) })],
        ['a label of 201 bytes', create({ label: 'é'.repeat(100) + 'x' })],
        ['a label that is no text', create({ label: 7 })],
        ['a label of half a character', create({ label: '\ud83d' })],
        ['meta over 4 KiB', create({ meta: { m: 'x'.repeat(4_096) } })],
        ['meta that is no JSON', create({ meta: { m: 1n } })],
        ['meta whose toJSON() gives nothing', create({ meta: { toJSON: () => undefined } })],
        ['meta whose toJSON() gives text', create({ meta: { toJSON: () => 'text' } })],
        ['meta with a getter that throws', create({ meta: unreadable })],
        ['meta that is an array', create({ meta: [] })],
        ['view of no id', () => secrets.view(undefined as never)],
        ['view of a number', () => secrets.view(7 as never)],
        ['an empty viewId', () => secrets.view('id', { viewId: '' })],
        ['peek of nothing', () => secrets.peek('')],
        ['burn of nothing', () => secrets.burn('')],
        ['status of nothing', () => secrets.status('')],
        ['confirm without a viewId', () => secrets.confirm('id', undefined as never)],
      ])('%s: InvalidArgument, and nothing is kept', async (_, call) => {
        expect(await codeOf(call())).toBe('InvalidArgument');
        expect(await under.contents()).toBe('');
      });

      const WRONG = [
        'hunter2',
        4711_0815,
        47110815n,
        ['hunter2'],
        { hunter2: 'hunter2' },
        true,
        null,
        Symbol('hunter2'),
      ];
      const OPTIONS = 'payload views ttlMs id meta maxFailures label tombstoneMs signal'.split(' ');
      it.each([
        ...OPTIONS.map((name): [string, (wrong: unknown) => Promise<unknown>] => [
          `create({ ${name} })`,
          (wrong) => secrets.create({ payload: 'p', views: 1, [name]: wrong }),
        ]),
        ...['viewId', 'leaseMs', 'signal'].map((name): [string, (wrong: unknown) => Promise<unknown>] => [
          `view(id, { ${name} })`,
          (wrong) => secrets.view('id', { [name]: wrong }),
        ]),
        ['create(options)', (wrong: unknown) => secrets.create(wrong as never)] as const,
        ['view(id)', (wrong: unknown) => secrets.view(wrong as never)] as const,
        ['view(id, options)', (wrong: unknown) => secrets.view('id', wrong as never)] as const,
        ['peek(id)', (wrong: unknown) => secrets.peek(wrong as never)] as const,
        ['burn(receipt)', (wrong: unknown) => secrets.burn(wrong as never)] as const,
        ['burn(id, options)', (wrong: unknown) => secrets.burn('id', wrong as never)] as const,
        ['status(receipt)', (wrong: unknown) => secrets.status(wrong as never)] as const,
        ['confirm(id)', (wrong: unknown) => secrets.confirm(wrong as never, 'v')] as const,
        ['confirm(id, viewId)', (wrong: unknown) => secrets.confirm('id', wrong as never)] as const,
        ['release(id, viewId)', (wrong: unknown) => secrets.release('id', wrong as never)] as const,
      ])('%s: no error quotes what was passed', async (_, call) => {
        for (const wrong of WRONG) {
          const outcome: unknown = await call(wrong).catch((error: unknown) => error);
          if (!(outcome instanceof Error)) continue; // It may be right here, as text is for an id.
          expect(outcome).toBeInstanceOf(SecretError);
          // A name that is no option is quoted.
          const said = inspect(outcome, { depth: 9 }).replace(/hunter2 is not an option/g, '');
          expect(said).not.toMatch(/hunter2|4711/);
        }
      });
    });

    it('agrees with a model over random commands and a moving clock', async () => {
      let round = 0;
      await fc.assert(
        fc.asyncProperty(secretCommands, async (commands) => {
          const model = new SecretModel();
          const prefix = `round ${round++}: `;
          const receipts = new Map<string, string>();
          const real = service({ tombstoneMs: TOMBSTONE_MS });
          for (const command of commands) {
            const expected = model.run(command);
            if (command.type === 'advance') under.advance(command.ticks * TICK_MS);
            else
              expect([command, await command.call(real, prefix, receipts)]).toStrictEqual([
                command,
                expected,
              ]);
          }
        }),
        { numRuns: Number(process.env.SECRET_RUNS ?? 150) },
      );
    }, 120_000);
  });
}
