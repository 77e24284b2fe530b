import type { Cluster, Redis } from 'ioredis';
import type { RedisConnection } from '../../lib/assembly/redis-connection.js';

type IORedis = { Redis: typeof Redis; Cluster: typeof Cluster };
type Connections = { RedisConnection: typeof RedisConnection };

/** Both majors that are supported, for `describe.each`. */
export const IOREDIS_VERSIONS = [
  ['ioredis 5', 'ioredis5'],
  ['ioredis 6', 'ioredis'],
] as const;

export type IORedisName = (typeof IOREDIS_VERSIONS)[number][1];

/** That ioredis, for a client as users make it. */
export const ioredisOf = (name: IORedisName): IORedis => jest.requireActual<IORedis>(name);

/** The package's connections, as they are in an app that has installed that ioredis. */
export function connectionsWith(name: IORedisName): Connections {
  let connections!: Connections;
  jest.isolateModules(() => {
    jest.doMock('ioredis', () => jest.requireActual<object>(name));
    connections = jest.requireActual<Connections>('../../lib/assembly/redis-connection.js');
    jest.dontMock('ioredis');
  });
  return connections;
}
