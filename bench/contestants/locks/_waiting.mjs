import { createHash } from 'node:crypto';
import { setTimeout as sleep } from 'node:timers/promises';

export const sha = (lua) => createHash('sha1').update(lua).digest('hex');

/** Tries again every 25 to 75 ms, as a loop written by hand would. */
export async function poll(attempt) {
  const end = Date.now() + 30_000;
  for (;;) {
    const got = await attempt();
    if (got) return got;
    if (Date.now() > end) throw new Error('waited for 30 s');
    await sleep(25 + Math.random() * 50);
  }
}
