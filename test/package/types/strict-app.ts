import { Cluster as Cluster5, Redis as Redis5 } from 'ioredis5';
import { Cluster, Redis } from 'ioredis';
import { createRedisBackend, Lock, type LockContext, SyncGuardModule, WithLock } from 'nestjs-syncguard';

// What apps with the strictest options of TypeScript write: compiled by types.spec.ts, never run.

const nodes = [{ host: '127.0.0.1', port: 7_000 }];

// A client of another copy of ioredis, as queue packages pin one: its private members make its class another type.
export const modules = [
  SyncGuardModule.forRoot({ redis: new Redis5() }),
  SyncGuardModule.forRoot({ redis: new Cluster5(nodes) }),
  SyncGuardModule.forRoot({ redis: new Redis() }),
  SyncGuardModule.forRoot({ redis: new Cluster(nodes) }),
  SyncGuardModule.forRoot({ redis: { host: '127.0.0.1', port: 6_379 } }),
  SyncGuardModule.forRoot({ redis: { nodes, options: { scaleReads: 'master' } } }),
  SyncGuardModule.forRootAsync({ useFactory: () => ({ redis: new Redis5(), closeClient: true }) }),
  // @ts-expect-error a client that is none
  SyncGuardModule.forRoot({ redis: { status: 'ready', host: 7 } }),
  // @ts-expect-error a misspelt option
  SyncGuardModule.forRoot({ redis: { hots: '127.0.0.1' } }),
];

export const backends = [
  createRedisBackend(new Redis()),
  createRedisBackend(new Redis5()),
  createRedisBackend(new Cluster(nodes)),
  createRedisBackend(new Cluster5(nodes)),
];

export class Methods {
  @WithLock('generic:{0}')
  async generic<T extends { id: string }>(_id: string, value: T): Promise<T> {
    return value;
  }

  @WithLock((order: { id: string }) => order.id)
  async narrowed<T extends { id: string }>(order: T, @Lock() _lock?: LockContext): Promise<T> {
    return order;
  }

  @WithLock('items')
  async *items(): AsyncIterableIterator<number> {
    yield 1;
  }

  @WithLock((id: string) => id)
  async *of<T>(_id: string, ...items: T[]): AsyncIterableIterator<T> {
    yield* items;
  }

  @WithLock('iterable')
  async *iterable(): AsyncIterable<number> {
    yield 1;
  }

  // @ts-expect-error the method's argument is not what the key function takes
  @WithLock((order: { id: string }) => order.id)
  async wrong<T extends number>(_order: T): Promise<void> {}

  // @ts-expect-error the method gives no promise
  @WithLock('sync')
  sync<T>(value: T): T[] {
    return [value];
  }
}
