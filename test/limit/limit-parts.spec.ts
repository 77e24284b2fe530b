import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import type { LimitedCall } from '../../lib/limit/route/limited-call.js';
import { limitedCall } from '../../lib/limit/route/visit.js';
import { DenyCache } from '../../lib/limit/deny-cache.js';
import { CircuitBreaker } from '../../lib/limit/limit.outage.js';
import type { BackendDenied, LimitCheck } from '../../lib/limit/limit.backend.js';
import { MemoryLimitBackend } from '../../lib/limit/memory/limit.memory-backend.js';
import { type ResolvedPolicy, resolvePolicy } from '../../lib/limit/limit.policy.js';
import { createCallId } from '../../lib/limit/decisions.js';

describe('CircuitBreaker', () => {
  let nowMs = 0;
  let breaker: CircuitBreaker;
  const fail = (times: number): void => {
    for (let i = 0; i < times; i++) breaker.failed();
  };
  beforeEach(() => {
    nowMs = 1_000;
    breaker = new CircuitBreaker(() => nowMs);
  });

  it('pauses for twice as long after each failed probe, up to 5 s', () => {
    fail(5);
    const pauses: number[] = [];
    for (let i = 0; i < 5; i++) {
      pauses.push(breaker.pauseLeftMs);
      nowMs += breaker.pauseLeftMs;
      breaker.tryEnter();
      breaker.failed();
    }
    expect(pauses).toEqual([1_000, 2_000, 4_000, 5_000, 5_000]);
  });

  it('sends another probe when the caller gave the first one up', () => {
    fail(5);
    nowMs += 1_000;
    expect(breaker.tryEnter()).toBe(true);
    breaker.abandoned();
    expect(breaker.tryEnter()).toBe(true);
  });
});

describe('DenyCache', () => {
  const blockOf = (retryAfterMs: number, blocked = true): BackendDenied => ({
    status: 'denied',
    scope: 'temp',
    reason: 'temp',
    retryAfterMs,
    shortCount: 5,
    longCount: 5,
    blocked,
  });
  let nowMs = 0;
  let cache: DenyCache;
  beforeEach(() => {
    nowMs = 0;
    cache = new DenyCache(1_000, () => nowMs);
  });

  it('never outlives the block, counted from before it was asked for; its wait is counted from the answer', () => {
    nowMs = 100;
    cache.add('ann', blockOf(500), 0);
    nowMs = 499;
    expect(cache.find('ann')).toEqual(blockOf(101));
    nowMs = 500;
    expect(cache.find('ann')).toBeUndefined();
  });

  it('is not brought back by a question that was asked before the block was lifted', () => {
    nowMs = 100;
    cache.forget(['ann']);
    cache.add('ann', blockOf(60_000), 50);
    expect(cache.find('ann')).toBeUndefined();
    cache.add('ann', blockOf(60_000), 101);
    expect(cache.find('ann')).toBeDefined();
  });

  it('holds 10,000 at most: the oldest goes first', () => {
    for (let i = 0; i < 10_001; i++) cache.add(`key${i}`, blockOf(60_000), 0);
    expect(cache.find('key0')).toBeUndefined();
    expect(cache.find('key1')).toBeDefined();
    expect(cache.find('key10000')).toBeDefined();
  });
});

describe('the memory of MemoryLimitBackend', () => {
  const policy = resolvePolicy({ name: 'login', temp: { windowMs: 1_000, threshold: 3, blockMs: 1_000 } });

  it('is bounded when they are not: the least recently used go first', async () => {
    const backend = new MemoryLimitBackend({ now: () => 1_000_000 });
    const first = { policy, identity: 'login\0first', cost: 1 };
    await backend.check([first], createCallId());
    for (let i = 0; i < 150_000; i++) {
      await backend.check([{ policy, identity: `login\0${i}`, cost: 1 }], 'call');
      if (i % 10_000 === 0) await backend.check([first], 'call');
    }
    expect(backend.size).toBeLessThanOrEqual(100_000);
    expect(await backend.peek(first)).toMatchObject({ shortCount: 2 });
  });

  const blocking = resolvePolicy({ name: 'login', temp: { windowMs: 1_000, threshold: 1, blockMs: 60_000 } });
  const plain = resolvePolicy({ name: 'api', limit: 5, windowMs: 60_000 });
  const checkOf = (policy: ResolvedPolicy, key: string): LimitCheck => ({
    ...{ policy, cost: 1 },
    identity: `${policy.name}\0${key}`,
  });

  it('keeps who is blocked while 100,000 others come, and who was blocked by hand longest', async () => {
    const backend = new MemoryLimitBackend({ now: () => 1_000_000 });
    const isBlocked = async (policy: ResolvedPolicy, key: string): Promise<boolean> =>
      (await backend.peek(checkOf(policy, key))).status === 'denied';
    await backend.check([checkOf(blocking, 'blocked')], 'a');
    await backend.block(checkOf(plain, 'by hand'), 60_000, 'fraud');
    for (let i = 0; i < 100_000; i++) await backend.check([checkOf(plain, `other-${i}`)], 'c');
    expect(backend.size).toBe(100_000);
    expect(await isBlocked(blocking, 'blocked')).toBe(true);
    expect(await isBlocked(plain, 'by hand')).toBe(true);

    // Blocks give room only to blocks, and those by hand only to their like.
    for (let i = 0; i < 100_000; i++) await backend.check([checkOf(blocking, `also-${i}`)], 'd');
    expect(backend.size).toBe(100_000);
    expect(await isBlocked(blocking, 'blocked')).toBe(false);
    expect(await isBlocked(blocking, 'also-99999')).toBe(true);
    expect(await isBlocked(plain, 'by hand')).toBe(true);
    for (let i = 0; i < 100_000; i++) await backend.block(checkOf(plain, `hand-${i}`), 60_000, 'fraud');
    expect(await isBlocked(plain, 'by hand')).toBe(false);
    expect(await isBlocked(plain, 'hand-99999')).toBe(true);
  });
});

describe('a call of GraphQL', () => {
  const info = { fieldName: 'search', parentType: { name: 'Query' } };
  const callOf = (...args: unknown[]): LimitedCall | undefined => {
    const context = new ExecutionContextHost(args);
    context.setType('graphql');
    return limitedCall(context, undefined as never);
  };

  it('that resolves a reference is named by its type: all references come by one field', () => {
    const context = { req: { headers: {} } };
    const of = (type: string): string | undefined => callOf({ __typename: type }, context, info)?.route;
    expect([of('User'), of('Order')]).toEqual([
      'GraphQL User.__resolveReference',
      'GraphQL Order.__resolveReference',
    ]);
  });

  it('that finds out a type is read as well, though its last argument tells nothing of the field', () => {
    const call = callOf({}, { req: { ip: '203.0.113.7' } }, info, { name: 'Found' });
    expect(call?.request.ip).toBe('203.0.113.7');
  });

  it('may have a frozen context, one without a request, or none', () => {
    expect(callOf({}, {}, Object.freeze({ ip: '203.0.113.7' }), info)?.request.ip).toBe('203.0.113.7');
    expect(callOf({}, {}, Object.freeze({}), info)?.request.headers).toEqual({});
    expect(callOf({}, {}, undefined, info)?.route).toBe('GraphQL Query.search');
  });

  it('takes what stands in inputs for its body: an argument first, then the inputs as the schema has them', () => {
    const args = {
      input: { email: 'ann', a: 1 },
      others: { email: 'bob', b: 2 },
      b: 3,
      tags: ['x'],
      no: null,
    };
    expect(callOf({}, args, {}, info)?.request.body).toMatchObject({ ...args, email: 'ann', a: 1, b: 3 });
    const proto = JSON.parse('{ "input": { "__proto__": { "email": "ann" } } }') as object;
    expect((callOf({}, proto, {}, info)?.request.body as { email?: string }).email).toBeUndefined();
  });
});
