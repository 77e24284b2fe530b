import { Body, Controller, Get, Header, HttpCode, HttpStatus, Post, Query, UseGuards } from '@nestjs/common';
import {
  AbuseLimiterService,
  type Balance,
  type BlockedKey,
  type BudgetRecord,
  BudgetService,
  type ForceReleaseResult,
  type ListedLock,
  type LockHolder,
  LockService,
  type OnceRecord,
  OnceService,
  type Page,
  RateLimit,
  type WaitingCall,
} from 'nestjs-syncguard';
import { OperatorGuard } from './operator.guard.js';

/** What somebody decides by hand. `by` is who it is: the password is the same for all. */
interface Decision {
  key: string;
  by: string;
}

/**
 * What is held, who waits, what is spent, and what nobody knows the end of. The services check what they are given: what
 * is wrong is a 400. Ten wrong passwords in a minute, and the address is refused for that minute.
 */
@Controller('operations')
@UseGuards(OperatorGuard)
@RateLimit('operator')
export class OperationsController {
  constructor(
    private readonly locks: LockService,
    private readonly budgets: BudgetService,
    private readonly once: OnceService,
    private readonly limiter: AbuseLimiterService,
  ) {}

  @Get('locks')
  @Header('Cache-Control', 'no-store')
  list(@Query() { prefix, cursor }: { prefix?: string; cursor?: string }): Promise<Page<ListedLock>> {
    return this.locks.list({ prefix, cursor });
  }

  /** Who holds it, and who waits for it. A process that hangs does not say that it holds it. */
  @Get('lock')
  @Header('Cache-Control', 'no-store')
  async lock(@Query('key') key: string): Promise<{ holders: LockHolder[]; waiting: WaitingCall[] }> {
    const [holders, waiting] = await Promise.all([this.locks.holder(key), this.locks.waiters(key)]);
    return { holders, waiting };
  }

  /** `fence` is that of the lock which was seen. If another holds it meanwhile, nothing happens. */
  @Post('locks/release')
  @HttpCode(HttpStatus.OK)
  release(
    @Body() { key, ...options }: Decision & { fence: string; reason: string },
  ): Promise<ForceReleaseResult> {
    return this.locks.forceRelease(key, options);
  }

  /** Who is blocked: a tag is the hash of his key, as log lines and events have it. */
  @Get('blocked')
  @Header('Cache-Control', 'no-store')
  blocked(@Query() { policy, cursor }: { policy?: string; cursor?: string }): Promise<Page<BlockedKey>> {
    return this.limiter.blocked({ policy, cursor });
  }

  @Post('blocked/unblock')
  @HttpCode(HttpStatus.OK)
  unblock(
    @Body() { tag, policy, by }: { tag: string; policy?: string; by: string },
  ): Promise<{ unblocked: number }> {
    return this.limiter.unblock({ tag, policy }, { by });
  }

  /** The tenants, and of one of them the open windows and the work that is running. */
  @Get('budgets')
  @Header('Cache-Control', 'no-store')
  async spent(
    @Query() { root = 'default', cursor }: { root?: string; cursor?: string },
  ): Promise<{ roots: readonly string[]; balances: Page<Balance>; holds: readonly BudgetRecord[] }> {
    const [{ roots }, balances, { records: holds }] = await Promise.all([
      this.budgets.roots(),
      this.budgets.balances({ root, cursor }),
      this.budgets.list({ root, state: 'pending' }),
    ]);
    return { roots, balances, holds };
  }

  /** The calls whose process has died: nobody knows whether they have done their work. */
  @Get('once')
  @Header('Cache-Control', 'no-store')
  unknown(@Query() { cursor }: { cursor?: string }): Promise<Page<OnceRecord>> {
    return this.once.list({ state: 'unknown', cursor });
  }

  /** It was done: `value` is what later calls get. */
  @Post('once/settle')
  @HttpCode(HttpStatus.OK)
  settle(@Body() { key, value, by }: Decision & { value: unknown }): Promise<unknown> {
    return this.once.settle(key, { value }, { by });
  }

  /** It was not done: the next call runs. */
  @Post('once/forget')
  @HttpCode(HttpStatus.OK)
  forget(@Body() { key, by }: Decision): Promise<unknown> {
    return this.once.forget(key, { by });
  }
}
