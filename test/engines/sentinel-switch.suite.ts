import 'reflect-metadata';
import { leaveReplica } from 'nestjs-syncguard';
import type { RedisConnection } from '../../lib/assembly/redis-connection.js';
import { type Double, doublesDuring } from '../support/engines/doubles.js';
import { switchPrimary } from '../support/engines/faults.js';
import { type SentinelGroup, startSentinelGroup } from '../support/engines/sentinel.js';
import { connectionsWith, IOREDIS_VERSIONS, ioredisOf } from '../support/ioredis-versions.js';

const SWITCHES = 3;
/** Without a failover detector the doubles go on for seconds. What is measured is printed: a busy machine is no fault. */
const NOT_FOR_SECONDS_MS = 1_000;

let group: SentinelGroup;
beforeAll(async () => {
  group = await startSentinelGroup();
}, 60_000);
afterAll(() => group.stop());

describe.each(IOREDIS_VERSIONS)('a planned switch of Sentinel under load, %s', (version, name) => {
  const { Redis } = ioredisOf(name);
  const { RedisConnection: Connection } = connectionsWith(name);
  const connect = (redis: unknown): RedisConnection =>
    new Connection({
      ...{ redis: redis as string, keyPrefix: 'syncguard' },
      ...{ commandTimeoutMs: 1_000, closeClient: false },
    });
  const connections: [string, () => RedisConnection][] = [
    ['our own connections', () => connect(group.options)],
    [
      'clients as docs/redis.md says',
      () => {
        const advised = { socketTimeout: 2_000, reconnectOnError: leaveReplica(), failoverDetector: true };
        const client = new Redis({ ...group.options, ...advised, disconnectTimeout: 100 });
        return connect(group.track(client.on('error', () => {})));
      },
    ],
  ];

  it.each(connections)(
    '%s: both instances leave the old primary when the switch is announced, and fences rise',
    async (whose, open) => {
      for (let i = 0; i < SWITCHES; i++) {
        await group.untilReplicated();
        const doubles = await doublesDuring(group, open, () => switchPrimary(group));
        console.log(`${version}, ${whose}: ${figures(doubles)}`);
        for (const { firstAtMs, rises } of doubles) {
          expect(firstAtMs).toBeLessThan(NOT_FOR_SECONDS_MS);
          expect(rises).toBe(true);
        }
      }
    },
    120_000,
  );
});

function figures(doubles: readonly Double[]): string {
  if (doubles.length === 0) return 'no key was granted twice';
  const firsts = doubles.map(({ firstAtMs }) => firstAtMs);
  const [earliest, latest] = [Math.min(...firsts).toFixed(0), Math.max(...firsts).toFixed(1)];
  return `${doubles.length} keys were granted twice; their first grants came from ${earliest} to ${latest} ms after the announcement`;
}
