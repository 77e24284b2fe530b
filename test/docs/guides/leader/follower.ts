// follower.ts
import { Injectable, Logger, Module } from '@nestjs/common';
import { LockService, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { setTimeout as sleep } from 'node:timers/promises';

@Injectable()
export class Follower {
  readonly #logger = new Logger(Follower.name);
  readonly #stop = new AbortController();
  #work?: Promise<void>;
  leads = false;
  reads = 0; // Stands for what is to be read by one instance at a time.

  constructor(private readonly locks: LockService) {}

  onApplicationBootstrap() {
    this.#work = this.#candidate(this.#stop.signal);
  }

  async onModuleDestroy() {
    this.#stop.abort(); // The next in line leads at once.
    await this.#work;
  }

  async #candidate(stop: AbortSignal): Promise<void> {
    const options = { key: 'feed', ttlMs: seconds(10), timeoutMs: Infinity, signal: stop };
    while (!stop.aborted)
      try {
        await this.locks.lock(
          ({ signal }) => this.#lead(AbortSignal.any([signal, stop])),
          options,
        );
      } catch (error) {
        if (stop.aborted) return;
        // The lock was lost, or the work threw.
        this.#logger.warn(`I do not lead the feed: ${String(error)}`);
        await sleep(seconds(1)); // Be a candidate again.
      }
  }

  async #lead(signal: AbortSignal): Promise<void> {
    this.leads = true;
    try {
      for (; !signal.aborted; await sleep(100)) this.reads++;
    } finally {
      this.leads = false;
    }
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  providers: [Follower],
})
export class FeedModule {}
