import { Body, Controller, Post } from '@nestjs/common';
import { type BudgetService, days, HangUp, hours, minutes, SyncGuardModule } from 'nestjs-syncguard';

export async function reserve(budgets: BudgetService, later: (...facts: unknown[]) => void) {
  const hold = await budgets.reserve({
    root: 'acme',
    scopes: ['user:42', 'org'],
    amount: 4_000,
    ttlMs: minutes(2),
  });
  if (!hold.ok && hold.reason === 'exceeded') return later(hold.violations, hold.retryAtMs);
  if (!hold.ok) return; // this id was used before
  await budgets.finalize(hold, 1_234); // or abort(hold), extend(hold, ms)
}

type Ask = object;

@Controller()
export class AskController {
  private readonly llm = { stream: (_ask: Ask, _signal: AbortSignal): AsyncIterable<string> => [] as never };

  @Post('ask')
  ask(@Body() ask: Ask, @HangUp() gone: AbortSignal) {
    return this.llm.stream(ask, gone); // gives up when the caller is gone
  }
}

export const options = () =>
  SyncGuardModule.forRoot({
    redis: process.env.REDIS_URL,
    budget: {
      limits: [
        {
          scope: 'user',
          period: { every: 'month', tz: 'Europe/Berlin' },
          limit: 1_000_000,
          thresholds: [80, 100],
        },
      ],
      retentionMs: minutes(15), // How long records are kept.
      idTtlMs: days(1), // How long ids of charges and finalized holds are known.
      maxHoldMs: hours(1), // A body that hangs holds for no longer. Default: no end.
      idleMs: minutes(1), // A client that reads no more of a stream for so long has hung up.
      reaper: { everyMs: 30_000 }, // false: you call reap()
    },
  });
