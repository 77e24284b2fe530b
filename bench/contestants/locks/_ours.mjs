import { openApp, syncguard } from '../_app.mjs';

const { LockService, WithLock } = syncguard;

class Orders {
  async pay() {}
}
const pay = Object.getOwnPropertyDescriptor(Orders.prototype, 'pay');
WithLock((id) => `order:${id}`)(Orders.prototype, 'pay', pay);
Object.defineProperty(Orders.prototype, 'pay', pay);

export const ours = (name, redis) => ({
  name,
  role: 'ours',
  async open() {
    const app = await openApp({ ...(redis && { redis: redis() }), providers: [Orders] });
    const locks = app.get(LockService);
    const orders = app.get(Orders);
    return {
      async acquire(key) {
        const handle = await locks.acquire({ key, ttlMs: 30_000 });
        if (!handle.ok) throw new Error('the lock is held');
        return handle;
      },
      release: (handle) => handle.release(),
      withLock: (key, fn) => locks.lock(fn, { key }),
      decorated: (id) => orders.pay(id),
    };
  },
});
