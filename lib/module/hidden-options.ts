import { inspect } from 'node:util';
import { isRedisClient } from '../redis/redis.options.js';

const HIDDEN = '[hidden]';
/** What is shown of the options of a connection, and of each of its nodes. */
const SHOWN = ['host', 'port', 'path', 'db', 'name', 'connectionName', 'username'];

/**
 * Returns a copy of the options which `util.inspect` and `JSON.stringify` show without passwords and secrets. Nest and other
 * tools show the providers of an app.
 */
export function hideOptions(options: unknown): unknown {
  if (typeof options !== 'object' || options === null) return options;
  const copy = Object.create(
    Object.getPrototypeOf(options) as object | null,
    Object.getOwnPropertyDescriptors(options),
  ) as object;
  const show = (): object => shownOptions(options);
  return Object.defineProperties(copy, { [inspect.custom]: { value: show }, toJSON: { value: show } });
}

function shownOptions({ redis, telemetry, ...rest }: { redis?: unknown; telemetry?: object }): object {
  return {
    ...(redis === undefined ? {} : { redis: shownRedis(redis) }),
    ...rest,
    ...(telemetry === undefined ? {} : { telemetry: { ...telemetry, hashSecret: HIDDEN } }),
  };
}

function shownRedis(redis: unknown): unknown {
  if (typeof redis === 'string') return withoutPassword(redis);
  if (typeof redis !== 'object' || redis === null) return HIDDEN;
  if (isRedisClient(redis)) return `[Redis client ${numberOf(redis)}]`;
  const { nodes, sentinels } = redis as { nodes?: unknown; sentinels?: unknown };
  const entries = Object.entries(redis).filter(([name]) => SHOWN.includes(name));
  return {
    ...Object.fromEntries(entries),
    ...(Array.isArray(nodes) ? { nodes: nodes.map(shownRedis) } : {}),
    ...(Array.isArray(sentinels) ? { sentinels: sentinels.map(shownRedis) } : {}),
  };
}

const numbers = new WeakMap<object, number>();
let clients = 0;

/** Nest 10 tells dynamic modules apart by their JSON, so two clients are not shown alike. */
function numberOf(client: object): number {
  const number = numbers.get(client) ?? ++clients;
  numbers.set(client, number);
  return number;
}

function withoutPassword(url: string): string {
  if (!URL.canParse(url)) return HIDDEN;
  const parsed = new URL(url);
  if (parsed.password !== '') parsed.password = '***';
  // Options may stand in the query, also a password.
  parsed.search = '';
  return parsed.href;
}
