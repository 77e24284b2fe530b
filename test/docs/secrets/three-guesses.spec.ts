// three-guesses.spec.ts
import { createCipheriv, createDecipheriv, randomBytes, scryptSync } from 'node:crypto';
import {
  Body,
  ConflictException,
  Controller,
  ForbiddenException,
  GoneException,
  HttpCode,
} from '@nestjs/common';
import { NotFoundException, Param, Post } from '@nestjs/common';
import { Test } from '@nestjs/testing';
import { days, seconds, SecretService } from 'nestjs-syncguard';
import { SyncGuardTestingModule } from 'nestjs-syncguard/testing';

const keyOf = (passphrase: string, salt: Buffer): Buffer => scryptSync(passphrase, salt, 32);

function seal(text: string, passphrase: string): Buffer {
  const [salt, iv] = [randomBytes(16), randomBytes(12)];
  const cipher = createCipheriv('aes-256-gcm', keyOf(passphrase, salt), iv);
  const sealed = Buffer.concat([cipher.update(text), cipher.final()]);
  return Buffer.concat([salt, iv, cipher.getAuthTag(), sealed]);
}

/** Returns undefined for a wrong passphrase. */
function open(sealed: Buffer, passphrase: string): string | undefined {
  const [salt, iv, tag] = [sealed.subarray(0, 16), sealed.subarray(16, 28), sealed.subarray(28, 44)];
  const decipher = createDecipheriv('aes-256-gcm', keyOf(passphrase, salt), iv, { authTagLength: 16 });
  decipher.setAuthTag(tag);
  try {
    return Buffer.concat([decipher.update(sealed.subarray(44)), decipher.final()]).toString();
  } catch {
    return undefined;
  }
}

@Controller()
class PasswordPage {
  constructor(private readonly secrets: SecretService) {}

  @Post('send')
  send(@Body() { text, passphrase }: { text: string; passphrase: string }) {
    const payload = seal(text, passphrase);
    return this.secrets.create({ payload, views: 1, ttlMs: days(7), maxFailures: 3 });
  }

  @Post('open/:id')
  @HttpCode(200)
  async open(@Param('id') id: string, @Body() { passphrase }: { passphrase: string }) {
    const secret = await this.secrets.view(id, { leaseMs: seconds(30) });
    if (!secret.ok) throw this.refused(secret.reason);
    const text = open(Buffer.from(secret.payload), passphrase);
    if (text === undefined) {
      const failure = await this.secrets.release(id, secret.viewId!);
      const left = failure.ok ? failure.failuresRemaining : 0;
      throw left ? new ForbiddenException(`Wrong. Tries left: ${left}.`) : new GoneException('burned');
    }
    // A lapsed lease was counted as a failure. The secret may be burned, so show nothing.
    const confirmed = await this.secrets.confirm(id, secret.viewId!);
    if (!confirmed.ok) throw new ConflictException('That took too long.');
    return { text };
  }

  private refused(reason: string) {
    if (reason === 'not_found') return new NotFoundException();
    if (reason === 'leased') return new ConflictException('Another reader has it open. Try again soon.');
    return new GoneException(reason);
  }
}

it('opens at the third guess, and never after three wrong ones', async () => {
  const imports = [SyncGuardTestingModule.forRoot()];
  const module = await Test.createTestingModule({ imports, controllers: [PasswordPage] }).compile();
  const page = module.get(PasswordPage);

  const one = await page.send({ text: 'door code 4711', passphrase: 'swordfish' });
  for (const passphrase of ['a', 'b'])
    await expect(page.open(one.id, { passphrase })).rejects.toThrow('Tries left');
  expect(await page.open(one.id, { passphrase: 'swordfish' })).toEqual({ text: 'door code 4711' });

  const two = await page.send({ text: 'door code 4711', passphrase: 'swordfish' });
  for (const passphrase of ['a', 'b', 'c']) await expect(page.open(two.id, { passphrase })).rejects.toThrow();
  await expect(page.open(two.id, { passphrase: 'swordfish' })).rejects.toThrow('burned');
  expect(await module.get(SecretService).status(two.receipt)).toMatchObject({ ended: 'failures' });
  await module.close();
});
