import { eventually } from '../../support/eventually.js';
import { stage } from './instances.js';
import { startToKill } from './processes.js';

describe('docs/guides/leader.md', () => {
  const on = stage();

  it('one instance leads, and another takes over when it stops', async () => {
    const { FeedModule, Follower } = await import('./leader/follower.js');
    const followers = [
      (await on.start(FeedModule)).app.get(Follower),
      (await on.start(FeedModule)).app.get(Follower),
    ];
    const leaders = () => followers.filter(({ leads }) => leads);
    const [first] = await eventually(() => {
      expect(leaders()).toHaveLength(1);
      return leaders();
    });
    const second = followers.find((follower) => follower !== first);
    await eventually(() => expect(first?.reads).toBeGreaterThan(2));
    expect(second?.reads).toBe(0);

    const stopped = first?.onModuleDestroy();
    await eventually(() => expect(second?.leads).toBe(true));
    await stopped;
    expect(leaders()).toEqual([second]);
  });

  it('another takes over within ten seconds when the process of the leader is killed', async () => {
    const { FeedModule, Follower } = await import('./leader/follower.js');
    const kill = await startToKill('leader', on.redis.url);
    const next = (await on.start(FeedModule)).app.get(Follower);
    await kill();
    expect(next.leads).toBe(false);
    await eventually(() => expect(next.leads).toBe(true), { timeoutMs: 15_000 });
    await eventually(() => expect(next.reads).toBeGreaterThan(2));
  });
});
