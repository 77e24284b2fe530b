import 'reflect-metadata';
import { readFileSync } from 'node:fs';
import { resolve } from 'node:path';
import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import {
  AbuseLimiterService,
  BudgetService,
  CounterService,
  FenceGuard,
  LockService,
  OnceService,
  SecretService,
  SyncGuardHealthIndicator,
  SyncGuardModule,
} from 'nestjs-syncguard';
import { neededCommands } from '../../lib/assembly/acl-probe.js';
import { type RedisServer, startRedisServer } from '../support/redis-server.js';

const page = readFileSync(resolve(__dirname, '../../docs/redis.md'), 'utf8');
const acl = (/```acl\n([^]*?)\n```/.exec(page)?.[1] ?? '').split(/\s+/);
const aclOfCluster = /On a Cluster add `(.*?)`/.exec(page)?.[1] as string;

describe('docs/redis.md', () => {
  describe('its ACL', () => {
    async function useAll(server: RedisServer, redis: unknown): Promise<void> {
      const denied = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
      const module = await Test.createTestingModule({
        imports: [
          SyncGuardModule.forRoot({
            redis: redis as string,
            budget: { limits: [{ scope: 'org', period: 'lifetime', limit: 100 }] },
          }),
        ],
      }).compile();
      const locks = module.get(LockService);
      await locks.lock(async (lock) => void (await lock.extend()), { key: 'order:1' });
      expect(await locks.isLocked({ key: 'order:1' })).toBe(false);
      const writer = { resource: 'order:1', fence: '000000000000001', lockId: 'A'.repeat(22) };
      expect(await module.get(FenceGuard).apply(writer)).toEqual({ ok: true });
      const limiter = module.get(AbuseLimiterService);
      const policy = { name: 'acl', limit: 1, windowMs: 60_000, blockMs: 60_000 };
      for (const allowed of [true, false])
        expect(await limiter.check('ann', policy)).toMatchObject({ allowed });
      await limiter.block('ann', policy, 1_000);
      await limiter.reset('ann', policy);
      const budgets = module.get(BudgetService);
      const hold = await budgets.reserve({ scopes: ['org'], amount: 5 });
      if (!hold.ok) throw new Error('no room');
      await budgets.finalize(hold, 5);
      await budgets.reap();
      expect(await budgets.verify('default')).toMatchObject({ ok: true });
      const secrets = module.get(SecretService);
      const { id } = await secrets.create({ payload: 'hidden', views: 1, ttlMs: 60_000 });
      expect(await secrets.view(id)).toMatchObject({ ok: true });
      await module.get(CounterService).increment('n', { max: 5, windowMs: 60_000 });
      const once = module.get(OnceService);
      const call = { key: 'k', waitMs: 60_000 };
      const answers = await Promise.all(
        [1, 2].map(() => once.run(() => new Promise((resolve) => setTimeout(resolve, 100, 'x')), call)),
      );
      expect(answers.map(({ replayed }) => replayed).sort()).toEqual([false, true]);
      await once.get('k');
      await once.settle('k', { value: 1 });
      await once.forget('k');
      expect(await module.get(SyncGuardHealthIndicator).isHealthy()).toMatchObject({
        syncguard: { status: 'up' },
      });
      await module.close();
      expect(denied.mock.calls).toStrictEqual([]);
      denied.mockRestore();
      expect(await server.client().call('ACL', 'LOG')).toStrictEqual([]);
    }

    it('allows the commands of our scripts, and those by which a client runs them, and no more', () => {
      const commands = acl.filter((rule) => rule.startsWith('+')).map((rule) => rule.slice(1).toUpperCase());
      const ofClients = ['EVAL', 'EVALSHA', 'PING', 'INFO', 'PUBLISH', 'SUBSCRIBE', 'CLIENT|SETNAME'];
      expect(commands).toStrictEqual([...neededCommands(), ...ofClients]);
    });

    it('suffices on one server', async () => {
      await using server = await startRedisServer();
      await server.client().call('ACL', 'SETUSER', 'app', 'on', '>secret', ...acl);
      await useAll(server, `redis://app:secret@127.0.0.1:${server.port}`);
    });

    it('suffices on a Cluster', async () => {
      await using server = await startRedisServer({ cluster: true });
      const rules = [...acl, ...aclOfCluster.split(' ')];
      await server.client().call('ACL', 'SETUSER', 'app', 'on', '>secret', ...rules);
      const nodes = [{ host: server.host, port: server.port }];
      await useAll(server, { nodes, options: { redisOptions: { username: 'app', password: 'secret' } } });
    });
  });
});
