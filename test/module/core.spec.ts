import { SyncGuardError, LockError } from 'nestjs-syncguard';
import { pause } from '../../lib/core/pause.js';
import { knownOptions, normalizeKey } from '../../lib/core/validate.js';
import { signalsIn } from '../../lib/method/abort-signals.js';

const INIT = { code: 'Aborted', message: 'It was aborted.' } as const;

describe('an error', () => {
  class OwnError extends LockError {}

  it("of a class of the user's own is one of ours, and ours is none of that class", () => {
    const error: unknown = new OwnError(INIT);
    expect([OwnError, LockError, SyncGuardError].map((type) => error instanceof type)).toEqual([
      true,
      true,
      true,
    ]);
    expect((new LockError(INIT) as unknown) instanceof OwnError).toBe(false);
  });

  it('can be given another name', () => {
    const error = new LockError(INIT);
    error.name = 'OrderIsLocked';
    expect(String(error)).toBe('OrderIsLocked: It was aborted.');
    Object.defineProperty(error, 'name', { value: 'Other' });
    expect(error.name).toBe('Other');
  });
});

describe('a pause', () => {
  const timers = (): number => process.getActiveResourcesInfo().filter((each) => each === 'Timeout').length;

  it('keeps the process alive, unless it is told not to, and ends with one of its signals', async () => {
    const controller = new AbortController();
    const signals = [undefined, new AbortController().signal, controller.signal];
    const before = timers();
    const silent = pause(60_000, { signals, ref: false });
    expect(timers()).toBe(before);
    const loud = pause(60_000, { signals });
    expect(timers()).toBe(before + 1);
    controller.abort();
    await Promise.all([silent, loud]);
    expect(timers()).toBe(before);
    await pause(60_000, { signals });
  });
});

it('a key has 512 bytes at most, of which "é" takes two in either spelling', () => {
  expect(normalizeKey('e\u0301'.repeat(256))).toBe('\u00e9'.repeat(256));
  expect(() => normalizeKey(`${'\u00e9'.repeat(256)}x`)).toThrow('must be at most 512 UTF-8 bytes, got 513.');
});

it('what is no option is told those that are, or that there are none', () => {
  expect(() => knownOptions('options', { wait: 1 }, [])).toThrow('The call has no options.');
  expect(() => knownOptions('options', { wait: 1 }, ['ttlMs'])).toThrow('The options are: ttlMs.');
});

it('a signal is found among the arguments of a call, beside what cannot be read', () => {
  const { signal } = new AbortController();
  const broken = new Proxy(
    {},
    {
      get: () => {
        throw new Error('cannot be read');
      },
    },
  );
  expect(signalsIn([null, 'text', broken, { signal }, { other: signal }])).toEqual([signal]);
});
