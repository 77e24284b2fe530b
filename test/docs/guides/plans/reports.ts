// reports.ts
import {
  type CanActivate,
  Controller,
  type ExecutionContext,
  Get,
  Injectable,
  Module,
  UseGuards,
} from '@nestjs/common';
import { hours, RateLimit, SyncGuardModule } from 'nestjs-syncguard';

const CALLS_AN_HOUR = { free: 3, pro: 10, unlimited: 'unlimited' } as const;

interface AppRequest {
  headers: { authorization?: string };
  user?: { id: string; plan: keyof typeof CALLS_AN_HOUR };
}

const requestOf = (context: ExecutionContext): AppRequest => context.switchToHttp().getRequest<AppRequest>();

/** Stands for your authentication: `authorization: ann free`. */
@Injectable()
export class AuthGuard implements CanActivate {
  canActivate(context: ExecutionContext): boolean {
    const request = requestOf(context);
    const [id, plan] = request.headers.authorization?.split(' ') ?? [];
    if (!id || !plan || !Object.hasOwn(CALLS_AN_HOUR, plan)) return false;
    request.user = { id, plan: plan as keyof typeof CALLS_AN_HOUR };
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

@Module({
  imports: [
    // Once, in your root module, with the options of all features.
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL,
      limit: { headers: 'draft-10' }, // Tells the client its limit and what remains.
      limits: {
        plan: {
          keyBy: 'user', // By `request.user.id`, and so after the guards.
          windowMs: hours(1),
          limit: (context) => CALLS_AN_HOUR[requestOf(context).user?.plan ?? 'free'],
        },
      },
    }),
  ],
  controllers: [ReportsController],
})
export class ReportsModule {}
