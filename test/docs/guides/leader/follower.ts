// follower.ts
import {
  Injectable,
  Logger,
  Module,
  type OnApplicationBootstrap,
  type OnModuleDestroy,
} from '@nestjs/common';
import { LockService, seconds, SyncGuardModule } from 'nestjs-syncguard';
import { setTimeout as sleep } from 'node:timers/promises';

/** Stands for what is to be read by one instance at a time. */
@Injectable()
export class Feed {
  reads = 0;
}

@Injectable()
export class Follower implements OnApplicationBootstrap, OnModuleDestroy {
  readonly #logger = new Logger(Follower.name);
  readonly #stop = new AbortController();
  #work: Promise<void> | undefined;
  leads = false;

  constructor(
    private readonly locks: LockService,
    private readonly feed: Feed,
  ) {}

  onApplicationBootstrap(): void {
    this.#work = this.#candidate(this.#stop.signal);
  }

  async onModuleDestroy(): Promise<void> {
    this.#stop.abort(); // The next in line leads at once.
    await this.#work;
  }

  async #candidate(stop: AbortSignal): Promise<void> {
    while (!stop.aborted)
      try {
        const options = { key: 'feed', ttlMs: seconds(10), timeoutMs: Infinity, signal: stop };
        await this.locks.lock(({ signal }) => this.#lead(AbortSignal.any([signal, stop])), options);
      } catch (error) {
        if (stop.aborted) return;
        this.#logger.warn(`I do not lead the feed: ${String(error)}`); // The lock was lost. Be a candidate again.
        await sleep(seconds(1));
      }
  }

  async #lead(signal: AbortSignal): Promise<void> {
    this.leads = true;
    for (; !signal.aborted; await sleep(100, undefined, { signal }).catch(() => {})) this.feed.reads++;
    this.leads = false;
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  providers: [Feed, Follower],
})
export class FeedModule {}
