import { Redis } from 'ioredis';
import { WaitingRoom } from '../../../lib/core/waiting-room.js';
import { resolveOnceDefaults } from '../../../lib/once/once.options.js';
import { OnceService } from '../../../lib/once/once.service.js';
import { onceOn } from '../../support/redis-backends.js';
import { ScriptRunner } from '../../../lib/script/script-runner.js';

// One of several processes with the same call: what it is told, and what it tells, goes over IPC.
const [url = ''] = process.argv.slice(2);
const service = new OnceService(onceOn(new ScriptRunner(new Redis(url), 10_000), 'app'), {
  once: resolveOnceDefaults({ leaseMs: 1_000 }),
  shutdown: { drainMs: 1_000 },
  waitingRoom: new WaitingRoom({ perKey: 10, perProcess: 10 }),
});
const tell = (event: object): void => void process.send?.(event);
let leave = (): void => {};

/** Runs its call, or waits for its turn, and stays inside until it is told to leave. */
async function run(name: string): Promise<void> {
  const result = await service.run(
    async ({ attempt, fence, signal }) => {
      tell({ event: 'in', attempt, fence });
      await new Promise<void>((resolve) => (leave = resolve));
      tell({ event: 'left', isAborted: signal.aborted });
      return name;
    },
    { key: 'order', waitMs: 60_000 },
  );
  tell({ event: 'out', ...result });
}

process.on('message', ({ do: what, name }: { do: 'run' | 'leave'; name: string }) => {
  if (what === 'leave') return leave();
  run(name).catch(({ code }: { code?: string }) => tell({ event: 'failed', code }));
});
process.once('disconnect', () => process.exit(0));
tell({ event: 'ready' });
