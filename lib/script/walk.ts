import { type ResolvedPageOptions, wrongCursor } from '../core/page.js';
import { pause } from '../core/pause.js';
import { settleWithin } from '../core/settle-within.js';
import { clientKeyPrefix, connectionsOf, type RedisClient } from '../redis/redis.client.js';
import { abortedBy, RedisFault, toRedisFault } from '../redis/redis.errors.js';
import { type ClusterPlace, cursorOf, placeOf, slotsIn, type WalkPlace } from '../redis/redis.walk-cursor.js';
import type { ScriptRunner } from './script-runner.js';

/** How many keys of the server one SCAN looks at, at most and at least. */
const STEP_KEYS = { most: 500, least: 10 };
/** How many keys all walks of this process look at in a ms. */
const KEYS_A_MS = 5;
/** How long one page is walked for, in ms. */
const PAGE_MS = 1_000;
/** How often the nodes of a Cluster are walked, if their slots go on to move. */
const MOST_ROUNDS = 5;

/** The names that a page of a walk has found, without the client's own `keyPrefix`. */
export interface WalkedPage {
  readonly names: readonly string[];
  readonly cursor: string | undefined;
}

/** A master of a Cluster, with the slots that it has: for itself, and in part while they move. */
interface Node {
  readonly id: string;
  readonly connection: RedisClient;
  readonly own: ReadonlySet<number>;
  readonly moving: ReadonlySet<number>;
}

/** Takes the place of each character that has a meaning in a pattern of MATCH. */
export const escapeGlob = (text: string): string => text.replace(/[\\*?[\]]/g, '\\$&');

/**
 * Walks over the keys of the server, or of all masters of a Cluster, by SCAN: it looks at the keys of other programs too. A key
 * that is there during the whole walk is found at least once, unless a server restarts meanwhile.
 *
 * @param pattern - of names as the package builds them, with `escapeGlob` where they are a user's
 * @throws RedisFault as the runner's calls, and SyncGuardConfigError for a cursor of something else
 */
export async function walk(
  runner: ScriptRunner,
  pattern: string,
  { cursor, limit, signal }: ResolvedPageOptions,
): Promise<WalkedPage> {
  if (signal?.aborted) throw abortedBy(signal);
  const given = cursor === undefined ? undefined : placeOf(cursor);
  const isCluster = runner.client.isCluster === true;
  if (given && (given.cluster !== undefined) !== isCluster) throw wrongCursor(cursor);
  const ask = <Reply>(command: Promise<Reply> | undefined): Promise<Reply> =>
    answerTo(command, runner, signal);
  const nodes = isCluster ? await mastersOf(runner.client, ask) : [];
  const prefix = clientKeyPrefix(runner.client);
  const names = new Set<string>();
  const endMs = performance.now() + PAGE_MS;
  let place = given ?? (isCluster ? beginAt(nodes[0], 0, new Set()) : { scan: '0' });
  do {
    const node = place.cluster?.node;
    const connection = node === undefined ? runner.client : nodes.find(({ id }) => id === node)?.connection;
    const count = Math.min(STEP_KEYS.most, Math.max(STEP_KEYS.least, limit - names.size));
    if (!(await hasTurn(count, endMs, signal))) break;
    const [scan, found]: [string, string[]] = connection
      ? await ask(connection.scan?.(place.scan, 'MATCH', escapeGlob(prefix) + pattern, 'COUNT', count))
      : ['0', []]; // The node has left the Cluster. Its slots are those of others now.
    for (const name of found) names.add(name.slice(prefix.length));
    if (scan !== '0') place = { ...place, scan };
    else {
      const next = place.cluster && after(place.cluster, await mastersOf(runner.client, ask));
      if (!next) return { names: [...names], cursor: undefined };
      place = next;
    }
  } while (names.size < limit && performance.now() < endMs);
  return { names: [...names], cursor: cursorOf(place) };
}

const beginAt = (node: Node | undefined, round: number, shown: ReadonlySet<number>): WalkPlace => ({
  scan: '0',
  cluster: { node: node?.id ?? '0'.repeat(40), round, had: node?.own ?? new Set(), shown },
});

/** Returns where the walk goes on when SCAN has ended on a node. Undefined if every slot was shown. */
function after({ node, round, had, shown }: ClusterPlace, nodes: readonly Node[]): WalkPlace | undefined {
  const own = nodes.find(({ id }) => id === node)?.own ?? new Set();
  const all = new Set([...shown, ...[...had].filter((slot) => own.has(slot))]);
  const left = nodes.filter((each) => [...each.own, ...each.moving].some((slot) => !all.has(slot)));
  const later = left.find(({ id }) => id > node);
  if (later) return beginAt(later, round, all);
  return left[0] && round + 1 < MOST_ROUNDS ? beginAt(left[0], round + 1, all) : undefined;
}

/** Asks each master which slots it has, as the client learns of a move only from a call that fails. */
async function mastersOf(
  client: RedisClient,
  ask: <Reply>(command: Promise<Reply> | undefined) => Promise<Reply>,
): Promise<Node[]> {
  if (client.refreshSlotsCache) await ask(new Promise<void>((done) => client.refreshSlotsCache?.(done)));
  const nodes = connectionsOf(client, 'master').map(async (connection) =>
    nodeOf(connection, String(await ask(connection.call?.('CLUSTER', 'NODES')))),
  );
  return (await Promise.all(nodes)).flat().sort((a, b) => (a.id < b.id ? -1 : 1));
}

/** Reads the line of a node about itself in the reply to CLUSTER NODES. A replica is left out. */
function nodeOf(connection: RedisClient, reply: string): Node[] {
  const line = /^([0-9a-f]{40}) .*\bmyself,master\b(?: \S+){5} ?(.*)$/m.exec(reply);
  if (!line) return [];
  const [, id = '', slots = ''] = line;
  const moving = new Set([...slots.matchAll(/\[(\d+)-[<>]-/g)].map(([, slot]) => Number(slot)));
  const own = [...slotsIn(slots.trim(), ' ')].filter((slot) => !moving.has(slot));
  return [{ id, connection, own: new Set(own), moving }];
}

let nextTurnMs = 0;

/** Waits until the walks of this process may look at so many keys. Returns false if that is after the end of the page. */
async function hasTurn(keys: number, endMs: number, signal: AbortSignal | undefined): Promise<boolean> {
  const nowMs = performance.now();
  const turnMs = Math.max(nowMs, nextTurnMs);
  if (turnMs > endMs) return false;
  nextTurnMs = turnMs + keys / KEYS_A_MS;
  await pause(turnMs - nowMs, { signals: [signal] }); // The command that follows tells of an abort.
  return true;
}

/** Gives a command the time that a script has. It only reads, so nothing is undone where it is given up. */
async function answerTo<Reply>(
  command: Promise<Reply> | undefined,
  { commandTimeoutMs, readiness }: ScriptRunner,
  signal: AbortSignal | undefined,
): Promise<Reply> {
  if (!command)
    throw new RedisFault('InvalidArgument', 'The Redis client cannot walk over its keys.', {
      hint: 'Pass an ioredis `Redis` or `Cluster`.',
    });
  await settleWithin(commandTimeoutMs, [command], signal);
  const late = readiness.ready ? new Error('Command timed out') : readiness.fault();
  command.catch(() => {}); // Nobody may wait for it any more.
  try {
    if (signal?.aborted) throw abortedBy(signal);
    return await Promise.race([command, Promise.reject<Reply>(late)]);
  } catch (error) {
    throw toRedisFault(error);
  }
}
