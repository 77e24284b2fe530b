import { setTimeout as sleep } from 'node:timers/promises';
import { eventually } from '../eventually.js';
import { type TcpProxy, startTcpProxy } from '../tcp-proxy.js';
import type { RedisEndpoint } from '../redis-server.js';
import { clientOf, type Request } from './client.js';
import { compose, type Composition, CoveredPairs, randomFrom } from './compose.js';
import { spell, valueOf } from './names.js';
import { type Account, forget, newAccount, startTarget, type Target, THRESHOLD } from './target.js';

/** Compositions that run at the same time. */
const AT_ONCE = 8;
const WAVES = 3;
const LAPSE_MS = 61_000;
const SLOW_MS = 15;

export interface Violation {
  readonly composition: Composition;
  readonly what: string;
}

/** The servers that clients attack: one for each adapter and backend. */
export class Targets {
  readonly #started = new Map<string, Promise<Target>>();
  /** Started once, though several targets that need it start at the same time. */
  #proxy: Promise<TcpProxy> | undefined;
  #skippedMs = 0;

  constructor(private readonly redis: RedisEndpoint) {
    const now = Date.now.bind(Date);
    jest.spyOn(Date, 'now').mockImplementation(() => now() + this.#skippedMs);
  }

  of({ adapter, transport, backend }: Composition): Promise<Target> {
    const kind = transport === 'http2' ? 'fastify-http2' : adapter;
    const name = `${kind} ${backend}`;
    let target = this.#started.get(name);
    if (!target) this.#started.set(name, (target = this.#start(kind, backend)));
    return target;
  }

  /** Time passes for the clocks of both backends, and for no timer: as if the process had died and come back. */
  skip(ms: number): void {
    this.#skippedMs += ms;
    this.redis.clock.advance(ms);
  }

  async close(): Promise<void> {
    for (const target of this.#started.values()) await (await target).app.close();
    await (await this.#proxy)?.stop();
    jest.restoreAllMocks();
  }

  async #start(kind: Parameters<typeof startTarget>[0], backend: Composition['backend']): Promise<Target> {
    const limit = { commandTimeoutMs: 10_000 };
    if (backend === 'memory') return startTarget(kind, { limit });
    if (backend === 'redis') return startTarget(kind, { redis: this.redis.url, limit });
    const proxy = await (this.#proxy ??= startTcpProxy(this.redis.port));
    proxy.delay(SLOW_MS);
    return startTarget(kind, { redis: proxy.url, limit });
  }
}

/** Guesses at one account, and then looks whether another account is free. */
async function attack(composition: Composition, targets: Targets): Promise<string | undefined> {
  const { port } = await targets.of(composition);
  const [account, bystander] = [newAccount(), newAccount()];
  const client = clientOf(port, composition);
  // A full wave sets the block, and then there is nothing for a success to forget.
  const guessesAWave = composition.between === 'a success elsewhere' ? THRESHOLD - 1 : THRESHOLD;
  try {
    for (let wave = 0; wave < WAVES; wave++) {
      const judgeMs = composition.pause === 'in the judge' ? 12 : composition.pause === 'a lapse' ? 40 : 0;
      const pauseMs = composition.pause === 'before the limit' ? 12 : 0;
      const guesses = Array.from({ length: guessesAWave }, (_, i) =>
        guessAt(account, composition, wave * guessesAWave + i, { judgeMs, pauseMs }),
      );
      const sent = client.send(guesses);
      if (composition.pause === 'a lapse') {
        await sleep(20);
        targets.skip(LAPSE_MS);
      }
      await sent;
      await sleep(pauseMs + judgeMs + 8);
      if (composition.between === 'a success elsewhere') await politely(port, '/send', account);
    }
    await eventually(() => {
      if (account.inside > 0) throw new Error('a guess is still judged');
    });
    if (account.judged > THRESHOLD) return `${account.judged} guesses were judged`;
    if (account.mostInside > THRESHOLD) return `${account.mostInside} were inside at once`;
    const status = await politely(port, '/handler', bystander);
    return status === 200 ? undefined : `a bystander got ${status}`;
  } finally {
    client.close();
    for (const each of [account, bystander]) forget(each);
  }
}

/** A wrong guess at an account, which is written as the composition says, and otherwise each time. */
function guessAt(
  { id, email }: Account,
  { judge, path, spelling, form }: Composition,
  guess: number,
  { judgeMs, pauseMs }: { judgeMs: number; pauseMs: number },
): Request {
  return {
    path: path === 'several' && guess % 2 === 1 ? `/${judge}/too` : `/${judge}`,
    body: { id, email: valueOf(spell(email, spelling, guess), form, guess), code: 'wrong', judgeMs },
    pauseMs,
    isForm: form === 'twice in a form',
  };
}

async function politely(port: number, path: string, { id, email }: Account): Promise<number> {
  const client = clientOf(port, {
    transport: http2Ports.has(port) ? 'http2' : 'http1',
    behaviour: 'reads all',
    patienceMs: 15_000,
  });
  const [status = 0] = await client.send([{ path, body: { id, email, code: 'right' }, pauseMs: 0 }]);
  client.close();
  return status;
}

const http2Ports = new Set<number>();

/**
 * Lets hostile clients of random compositions guess at codes. The one invariant: of one account no more guesses are judged
 * than its limit says, no more are inside at once, and nobody else is kept out.
 */
export async function attackAll(
  targets: Targets,
  seed: number,
  count: number,
): Promise<{ readonly ran: number; readonly violations: Violation[]; readonly covered: string }> {
  const random = randomFrom(seed);
  const pairs = new CoveredPairs();
  const violations: Violation[] = [];
  let ran = 0;
  const work = async (): Promise<void> => {
    while (ran < count && violations.length < 5) {
      ran++;
      const composition = compose(random);
      pairs.add(composition);
      if (composition.transport === 'http2') http2Ports.add((await targets.of(composition)).port);
      const what = await attack(composition, targets).catch(
        (error: unknown) => `it ended with ${String(error)}`,
      );
      if (what) violations.push({ composition, what });
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  return { ran, violations, covered: pairs.text };
}
