// secrets.spec.ts
import { Test } from '@nestjs/testing';
import { hours, SecretService } from 'nestjs-syncguard';
import { SyncGuardTesting, SyncGuardTestingModule } from 'nestjs-syncguard/testing';

it('shows a secret until its hour is over', async () => {
  const module = await Test.createTestingModule({ imports: [SyncGuardTestingModule.forRoot()] }).compile();
  const secrets = module.get(SecretService);
  const { id } = await secrets.create({ payload: 'The door code is 4711', ttlMs: hours(1) });
  expect(await secrets.view(id)).toMatchObject({ ok: true, payload: 'The door code is 4711' });

  module.get(SyncGuardTesting).clock.advance(hours(1));
  expect(await secrets.view(id)).toEqual({ ok: false, reason: 'expired' });
  await module.close();
});
