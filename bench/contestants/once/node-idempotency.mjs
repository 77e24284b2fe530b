// What its interceptor for Nest calls before and after a handler.
import { Idempotency } from '@node-idempotency/core';
import { RedisStorageAdapter } from '@node-idempotency/storage-adapter-redis';
import { url } from '../../harness/redis.mjs';

export default {
  name: '@node-idempotency/core 1.0',
  async open() {
    const storage = new RedisStorageAdapter({ url: url() });
    await storage.connect();
    const idempotency = new Idempotency(storage);
    const call = async (key, body) => {
      const request = { headers: { 'idempotency-key': key }, path: '/orders', method: 'POST', options: {} };
      const found = await idempotency.onRequest(request);
      if (found) return found.body;
      const value = await body();
      await idempotency.onResponse(request, { body: value });
      return value;
    };
    return { run: call, replay: call };
  },
};
