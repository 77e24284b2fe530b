import { openApp, syncguard } from '../_app.mjs';

export const ours = (name, role, redis) => ({
  name,
  role,
  async open() {
    const limits = [{ scope: 'b', period: 'lifetime', limit: 1e12 }];
    const app = await openApp({ ...(redis && { redis: redis() }), budget: { limits } });
    const budgets = app.get(syncguard.BudgetService);
    return {
      async spend(name, amount) {
        const hold = await budgets.reserve({ scopes: [`b:${name}`], amount });
        if (!hold.ok) return false;
        await budgets.finalize(hold, amount);
        return true;
      },
      used: async (name) => Number((await budgets.balance({ scope: `b:${name}` }))[0].committed),
    };
  },
});
