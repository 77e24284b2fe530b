import { setImmediate as nextTurn } from 'node:timers/promises';
import { BackgroundRetries } from '../../lib/core/background-retries.js';
import { eventually } from '../support/eventually.js';

it('thousands that are repeated in the background wait for their end by one listener, and a flush wakes all', async () => {
  const listen = jest.spyOn(EventTarget.prototype, 'addEventListener');
  const retries = new BackgroundRetries();
  let tries = 0;
  let isBack = false;
  const attempt = async (): Promise<boolean> => {
    tries++;
    return isBack;
  };
  for (let i = 0; i < 2_000; i++) retries.start(attempt, 60_000);
  await eventually(() => expect(tries).toBeGreaterThanOrEqual(2_000));
  await nextTurn(); // Each has begun its pause.
  const listeners = listen.mock.calls.length;
  listen.mockRestore();
  isBack = true;
  const triedBefore = tries;
  await retries.flush();
  expect(tries).toBe(triedBefore + 2_000);
  expect(listeners).toBe(1);
});
