// reports.ts
import { Controller, type ExecutionContext, Get, Module, UseGuards } from '@nestjs/common';
import { hours, RateLimit, SyncGuardModule } from 'nestjs-syncguard';

const CALLS_AN_HOUR = { free: 3, pro: 10, unlimited: 'unlimited' } as const;

type User = { id: string; plan: keyof typeof CALLS_AN_HOUR };
type AppRequest = { headers: { authorization?: string }; user?: User };
const requestOf = (context: ExecutionContext) => context.switchToHttp().getRequest<AppRequest>();

/** Stands for your authentication: `authorization: ann free`. What matters is `request.user`. */
export class AuthGuard {
  canActivate(context: ExecutionContext): boolean {
    const request = requestOf(context);
    const [id, plan] = request.headers.authorization?.split(' ') ?? [];
    if (!id || !plan || !Object.hasOwn(CALLS_AN_HOUR, plan)) return false;
    request.user = { id, plan: plan as User['plan'] };
    return true;
  }
}

@Controller('reports')
@UseGuards(AuthGuard)
export class ReportsController {
  @Get()
  @RateLimit('plan')
  list(): string[] {
    return [];
  }
}

const plan = {
  keyBy: 'user', // By `request.user.id`, and so after the guards.
  windowMs: hours(1),
  limit: (context: ExecutionContext) => CALLS_AN_HOUR[requestOf(context).user?.plan ?? 'free'],
};

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, limits: { plan } })],
  controllers: [ReportsController],
})
export class ReportsModule {}
