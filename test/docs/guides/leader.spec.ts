import { eventually } from '../../support/eventually.js';
import { stage } from './instances.js';

it('docs/guides/leader.md: one instance leads, and another takes over when it stops', async () => {
  const { FeedModule, Follower, Feed } = await import('./leader/follower.js');
  const apps = [(await on.start(FeedModule)).app, (await on.start(FeedModule)).app];
  const leaders = () => apps.filter((app) => app.get(Follower).leads);
  const [first] = await eventually(() => {
    expect(leaders()).toHaveLength(1);
    return leaders();
  });
  const second = apps.find((app) => app !== first);
  await eventually(() => expect(first?.get(Feed).reads).toBeGreaterThan(2));
  expect(second?.get(Feed).reads).toBe(0);

  const stopped = first?.close();
  await eventually(() => expect(second?.get(Follower).leads).toBe(true));
  await stopped;
  expect(leaders()).toEqual([second]);
});

const on = stage();
