import { applyDecorators, Post } from '@nestjs/common';
import { join } from 'node:path';
import ts from 'typescript';
import {
  createMemoryBackend,
  createRedisBackend,
  Lock,
  type LockBackend,
  type LockContext,
  LockService,
  type RedisCapabilities,
  WithBudget,
  WithLock,
} from 'nestjs-syncguard';

// What must not compile: `npm run typecheck` fails where one of these lines would.

async function unchecked(locks: LockService): Promise<void> {
  const result = await locks.acquire({ key: 'order:1', ttlMs: 1_000 });
  // @ts-expect-error an unchecked result has no methods
  void result.release;
  // @ts-expect-error and cannot be disposed of
  await using lock = result;
  void lock;
  if (result.ok) {
    const fence: string = result.fence;
    await using held = result;
    void [fence, held];
  }
  const skipped: number | undefined = await locks.lock(() => 1, { key: 'x', onContention: 'skip' });
  const instead: number | string = await locks.lock(() => 1, { key: 'x', onContention: (key) => key });
  const sure: number = await locks.lock(() => 1, { key: 'x' });
  // @ts-expect-error a misspelt option
  await locks.lock(() => 1, { key: 'x', ttlMS: 1 });
  void [skipped, instead, sure];
}

class Methods {
  @WithLock((order: { id: string }) => order.id)
  async first(_order: { id: string }, _more: number, @Lock() _lock?: LockContext): Promise<number> {
    return 1;
  }

  @WithLock('{0}')
  async template(_id: string): Promise<void> {}

  // @ts-expect-error the method's argument is not what the key function takes
  @WithLock((order: { id: string }) => order.id)
  async wrong(_order: number): Promise<void> {}

  @applyDecorators(WithLock('{0}'), WithBudget({ scopes: () => ['a'], estimate: () => 1 }), Post())
  async composed(_id: string): Promise<void> {}

  // @ts-expect-error the method's argument is not what the budget's function takes
  @WithBudget({ scopes: (user: string) => [user], estimate: () => 1 })
  async wrongBudget(_order: number): Promise<void> {}

  // @ts-expect-error the method gives no promise
  @WithLock('x')
  sync(): number {
    return 1;
  }
}

// Never called: what stands on no method fails at run time as well.
const onProperties = (): unknown => {
  class Properties {
    // @ts-expect-error not a method
    @WithLock('x') locked = 1;
    // @ts-expect-error not a method
    @WithBudget({ scopes: () => ['a'], estimate: () => 1 }) budgeted = 1;
  }
  return Properties;
};

describe('types', () => {
  it('tell the backends apart, and fences need no assertion', async () => {
    const redis = (client: Parameters<typeof createRedisBackend>[0]): LockBackend<RedisCapabilities> =>
      createRedisBackend(client);
    const memory: 'memory' = createMemoryBackend().capabilities.backend;
    expect([memory, typeof redis, typeof unchecked, typeof Methods, typeof onProperties]).toStrictEqual([
      'memory',
      'function',
      'function',
      'function',
      'function',
    ]);
  });

  it('fit an app with exactOptionalPropertyTypes, and the client of another copy of ioredis', () => {
    const root = join(__dirname, '../..');
    const config = ts.readConfigFile(join(root, 'tsconfig.json'), ts.sys.readFile);
    const { options } = ts.parseJsonConfigFileContent(config.config, ts.sys, root);
    const app = join(__dirname, 'types/strict-app.ts');
    const program = ts.createProgram([app], { ...options, exactOptionalPropertyTypes: true, noEmit: true });
    const wrong = program.getSemanticDiagnostics(program.getSourceFile(app));
    expect(wrong.map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, '\n'))).toStrictEqual(
      [],
    );
  });
});
