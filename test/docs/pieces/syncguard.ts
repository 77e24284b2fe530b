import { Redis } from 'ioredis';

interface Options {
  readonly key: string;
  readonly ttlMs: number;
  readonly acquisition: { readonly timeoutMs: number };
}
/** Of the package syncguard. */
declare const createLock: (redis: Redis) => <T>(body: () => Promise<T>, options: Options) => Promise<T>;

export async function pay(id: string, paid: Set<string>, charge: (id: string) => Promise<void>) {
  const lock = createLock(new Redis());

  await lock(
    async () => {
      const charged = !paid.has(id);
      await charge(id);
      paid.add(id);
      return { id, charged };
    },
    { key: `order:${id}`, ttlMs: 5_000, acquisition: { timeoutMs: 5_000 } },
  );
}
