// What one call of each hot path makes in this process: promises, and bytes of the heap. One call at a time.
import 'reflect-metadata';
import { createHook } from 'node:async_hooks';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { ExecutionContextHost } from '@nestjs/core/helpers/execution-context-host.js';
import { openApp, syncguard } from '../contestants/_app.mjs';
import { serve } from '../harness/contestants.mjs';
import { connect } from '../harness/redis.mjs';
import { inFlight, median } from '../harness/stats.mjs';

const redis = connect();
const {
  LockService,
  WithLock,
  AbuseLimiterService,
  RateLimitGuard,
  BudgetService,
  SecretService,
  OnceService,
} = syncguard;

class Orders {
  async pay() {}
}
const pay = Object.getOwnPropertyDescriptor(Orders.prototype, 'pay');
WithLock((id) => `pay:${id}`)(Orders.prototype, 'pay', pay);
Object.defineProperty(Orders.prototype, 'pay', pay);

const limit = { keyBy: 'headers.x-client', limit: 1000, windowMs: 60_000 };
const app = await openApp({
  providers: [Orders, RateLimitGuard],
  limits: { default: limit, fixed: { ...limit, algorithm: 'fixed-window' } },
  budget: { limits: [{ scope: 'b', period: 'lifetime', limit: 1e12 }] },
});
const part = (token) => token && app.get(token);
const [locks, limiter, guard, budgets] = [
  LockService,
  AbuseLimiterService,
  RateLimitGuard,
  BudgetService,
].map(part);
const [secrets, once, orders] = [SecretService, OnceService, Orders].map(part);

/** A request of Express, as far as the guard looks. */
function contextOf(i) {
  const request = {
    method: 'GET',
    url: '/',
    originalUrl: '/',
    headers: { 'x-client': `c${i}` },
    on() {},
    once() {},
  };
  const response = { req: request, setHeader() {}, getHeader() {}, on() {}, once() {}, headersSent: false };
  return new ExecutionContextHost([request, response], Orders, Orders.prototype.pay);
}
const ofOnce = (key) => once.run(async () => 1, { key });

/** What is there before the call, by its number, and the call. */
const PATHS = {
  'bare PING': { call: () => redis.ping() },
  'bare EVALSHA': { call: (i) => redis.evalsha(EMPTY, 4, `a${i}`, `b${i}`, `c${i}`, `d${i}`, 'x', 'y', 'z') },
  acquire: { call: (i) => locks.acquire({ key: `a${i}`, ttlMs: 30_000 }) },
  release: {
    before: (i) => locks.acquire({ key: `r${i}`, ttlMs: 30_000 }),
    call: (_, handle) => handle.release(),
  },
  'lock()': { call: (i) => locks.lock(() => 1, { key: `l${i}` }) },
  '@WithLock': { call: (i) => orders.pay(i) },
  check: { call: (i) => limiter.check(`k${i}`, 'default') },
  'check, fixed window': { call: (i) => limiter.check(`f${i}`, 'fixed') },
  guard: { before: contextOf, call: (_, context) => guard.canActivate(context) },
  reserve: { call: () => budgets.reserve({ scopes: ['b:1'], amount: 1 }) },
  finalize: {
    before: () => budgets.reserve({ scopes: ['b:2'], amount: 1 }),
    call: (_, hold) => budgets.finalize(hold, 1),
  },
  charge: { call: (i) => budgets.charge({ id: `charge-${i}`, scopes: ['b:3'], amount: 1 }) },
  'secret, create': { call: () => secrets.create({ payload: 'sealed', views: 1, ttlMs: 60_000 }) },
  'secret, view': {
    before: () => secrets.create({ payload: 'sealed', views: 1, ttlMs: 60_000 }),
    call: (_, { id }) => secrets.view(id),
  },
  ...(once && {
    'once, run': { call: (i) => ofOnce(`o${i}`) },
    'once, replay': { before: (i) => ofOnce(`p${i}`), call: (i) => ofOnce(`p${i}`) },
  }),
};
const EMPTY = await redis.script('LOAD', 'return 1');
const CALLS = 400;

/** The fewest of some calls: a timer of the process may make promises too. */
async function promisesOf(calls, call) {
  const made = [];
  for (const [i, before] of calls) {
    let count = 0;
    const hook = createHook({ init: (_, type) => void (type === 'PROMISE' && count++) }).enable();
    await call(i, before);
    hook.disable();
    made.push(count);
  }
  return Math.min(...made);
}

/** The young generation is so large that nothing is collected between two readings. */
async function bytesOf(calls, call) {
  globalThis.gc();
  const before = process.memoryUsage().heapUsed;
  await inFlight(calls.length, 64, (n) => call(...calls[n]));
  return (process.memoryUsage().heapUsed - before) / calls.length;
}

async function prepared(from, n, before) {
  const calls = [];
  for (let i = from; i < from + n; i++) calls.push([i, await before?.(i)]);
  await nextTurn();
  return calls;
}

serve({
  about: () => ({ name: 'counts' }),
  async count({ warm }) {
    const found = {};
    for (const [name, { before, call }] of Object.entries(PATHS)) {
      await inFlight(warm, 64, async (i) => call(i, await before?.(i)));
      const bytes = [];
      for (let round = 1; round <= 5; round++)
        bytes.push(await bytesOf(await prepared(warm + round * CALLS, CALLS, before), call));
      const promises = await promisesOf(await prepared(warm, 20, before), call);
      found[name] = { promises, bytes: median(bytes) };
    }
    await redis.flushdb();
    return found;
  },
});
