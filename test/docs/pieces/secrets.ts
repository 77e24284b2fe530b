import {
  ConflictException,
  Controller,
  ForbiddenException,
  Get,
  GoneException,
  Header,
  HttpCode,
  NotFoundException,
  Param,
  Post,
} from '@nestjs/common';
import type { Redis } from 'ioredis';
import { type CounterService, days, hours, seconds, SecretService, SyncGuardModule } from 'nestjs-syncguard';
import {
  ATOMIC_DECREMENT_SCRIPT,
  ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT,
  parseDecrementResult,
  parseIncrementResult,
} from 'nestjs-syncguard/compat';

const open = (payload: string | Buffer): string => payload.toString();
const tryToOpen = (payload: string | Buffer, _passphrase: string): string | undefined => payload.toString();
interface MySecret {
  readonly text: string;
}

export async function first(secrets: SecretService, sealed: string) {
  const { id, receipt } = await secrets.create({ payload: sealed, views: 1, ttlMs: hours(1) });

  const secret = await secrets.view(id);
  if (secret.ok) return open(secret.payload);

  return receipt;
}

export const options = () => {
  SyncGuardModule.forRoot({ secret: { maxBytes: 1_048_576, tombstoneMs: hours(24), uniform: false } });
};

@Controller()
export class SecretsController {
  constructor(private readonly secrets: SecretService) {}

  @Get(':id')
  peek(@Param('id') id: string) {
    return this.secrets.peek(id);
  }

  @Post(':id/reveal')
  @HttpCode(200)
  @Header('Cache-Control', 'no-store')
  async reveal(@Param('id') id: string) {
    const secret = await this.secrets.view(id);
    if (!secret.ok)
      throw secret.reason === 'not_found' ? new NotFoundException() : new GoneException(secret.reason);
    return { text: open(secret.payload), viewsRemaining: secret.viewsRemaining };
  }
}

export async function retried(
  secrets: SecretService,
  id: string,
  request: { headers: Record<string, string> },
) {
  await secrets.view(id, { viewId: request.headers['idempotency-key'] });
}

export async function leased(secrets: SecretService, id: string, passphrase: string) {
  const secret = await secrets.view(id, { leaseMs: seconds(30) });
  if (!secret.ok && secret.reason === 'not_found') throw new NotFoundException();
  if (!secret.ok && secret.reason === 'leased')
    throw new ConflictException('Another reader has it open. Try again soon.');
  if (!secret.ok) throw new GoneException(secret.reason);
  const text = tryToOpen(secret.payload, passphrase);
  if (text === undefined) {
    await secrets.release(id, secret.viewId!); // the view is free again
    throw new ForbiddenException('Wrong passphrase.');
  }
  const confirmed = await secrets.confirm(id, secret.viewId!); // counts the view, and burns the secret after its last view
  if (!confirmed.ok) throw new GoneException('burned'); // The sender took it back meanwhile, so show nothing.
  return text;
}

export async function sender(secrets: SecretService, receipt: string) {
  const status = await secrets.status(receipt);
  // { ok: true, state: 'burned', ended: 'used', viewsUsed: 1, viewsRemaining: 0, viewedAtMs: 1795773000123, ... }
  return status;
}

export async function counted(counters: CounterService, user: string) {
  const { ok, count, remaining, resetMs } = await counters.increment(`exports:${user}`, {
    max: 100,
    windowMs: days(1),
  });
  return { ok, count, remaining, resetMs };
}

export async function documents(redis: Redis, id: string, key: string) {
  const result = parseDecrementResult<MySecret>(await redis.eval(ATOMIC_DECREMENT_SCRIPT, 1, `secret:${id}`));
  // null, or { secret, burned }; throws InvalidResultError with the error of the script as its code

  const count = parseIncrementResult(await redis.eval(ATOMIC_INCREMENT_WITH_LIMIT_SCRIPT, 1, key, 100, 60));
  // the new count, or -1 where the maximum is reached
  return { result, count };
}
