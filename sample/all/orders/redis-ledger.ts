import type { OnApplicationShutdown } from '@nestjs/common';
import { Redis } from 'ioredis';
import { Ledger } from './ledger.js';

const DAY_SECONDS = 86_400;

/**
 * Keeps orders in Redis, for all processes: one key for each order, for a day. A real app uses a database.
 */
export class RedisLedger extends Ledger implements OnApplicationShutdown {
  readonly #redis: Redis;

  constructor(url: string) {
    super();
    this.#redis = new Redis(url, { commandTimeout: 1_000, maxRetriesPerRequest: 1, disconnectTimeout: 100 });
    // GET /health reports the outage. Without a listener ioredis prints every attempt to reconnect.
    this.#redis.on('error', () => {});
  }

  override async find(orderId: string): Promise<string | undefined> {
    return (await this.#redis.get(keyOf(orderId))) ?? undefined;
  }

  override async record(orderId: string, fence: string): Promise<string> {
    const written = await this.#redis.set(keyOf(orderId), fence, 'EX', DAY_SECONDS, 'NX');
    return written ? fence : ((await this.find(orderId)) ?? fence);
  }

  onApplicationShutdown(): void {
    this.#redis.disconnect();
  }
}

const keyOf = (orderId: string): string => `sample:paid:${orderId}`;
