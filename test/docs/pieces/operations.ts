import type { AbuseLimiterService, BudgetService, LockService, OnceService } from 'nestjs-syncguard';

export async function look(locks: LockService) {
  const { items, cursor } = await locks.list({ prefix: 'order:' }); // { key, fence, acquiredAtMs?, expiresAtMs, waiting }[]
  await locks.waiters('order:7'); // { position, process, sinceMs? }[], the first 1,000
  await locks.holder('order:7'); // { host, pid, method?, sinceMs }[]
  const [order] = items;
  if (order) await locks.forceRelease(order.key, { fence: order.fence, reason: 'its pod hangs', by: 'ann' });
  return cursor;
}

export async function others(
  { budgets, limiter, once }: { budgets: BudgetService; limiter: AbuseLimiterService; once: OnceService },
  { ip, email }: { ip: string; email: string },
) {
  await budgets.roots(); // { roots, cursor? }
  await budgets.balances({ root: 'default', type: 'user' }); // the open windows of every user: { items, cursor? }
  await budgets.list({ state: 'pending' }); // the holds
  await budgets.setLimit({ scope: 'user:42', period: 'lifetime', limit: 500, by: 'ann' }); // `credit` and `abort` take it too

  await limiter.peek({ ip, 'body.email': email }, 'login'); // is he locked out, by what, for how long
  await limiter.unblock({ ip, 'body.email': email }, 'login', { by: 'ann' });
  await limiter.lift('login', { 'body.email': email }, { by: 'ann' }); // from all addresses
  const [block] = (await limiter.blocked({ policy: 'login' })).items; // { policy, tag, scope, reason, endsAtMs }
  if (block) await limiter.unblock({ tag: block.tag, policy: 'login' }, { by: 'ann' }); // { unblocked: 1 }

  const { items } = await once.list({ state: 'unknown' }); // whose process died: { key, state, attempt, startedAtMs, expiresAtMs }[]
  const [charge] = items;
  if (!charge) return;
  await once.settle(charge.key, { value: { charge: 'ch_1' } }, { by: 'ann' }); // it was paid
  await once.forget(charge.key, { by: 'ann' }); // it was not: the next call runs
}
