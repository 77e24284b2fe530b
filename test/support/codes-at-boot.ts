import { Logger } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { SyncGuardModule } from 'nestjs-syncguard';

/** Boots the module on this Redis, and gives the codes of its warnings. */
export async function codesAtBoot(redis: unknown): Promise<string[]> {
  const spy = jest.spyOn(Logger.prototype, 'warn').mockImplementation(() => {});
  const imports = [SyncGuardModule.forRoot({ redis: redis as string })];
  const module = await Test.createTestingModule({ imports }).compile();
  const codes = spy.mock.calls.map(([message]) => String(message).split(':', 1)[0] as string);
  spy.mockRestore();
  await module.close();
  return codes;
}
