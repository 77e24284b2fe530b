// articles.ts
import { Controller, type ExecutionContext, Get, Module } from '@nestjs/common';
import { APP_GUARD } from '@nestjs/core';
import { minutes, RateLimitGuard, SyncGuardModule } from 'nestjs-syncguard';

type AppRequest = { headers: Record<string, string | undefined>; user?: { id: string } };

/** Stands for your authentication, which puts `request.user` on the request. */
export class AuthGuard {
  canActivate(context: ExecutionContext): boolean {
    const request = context.switchToHttp().getRequest<AppRequest>();
    const id = request.headers.authorization;
    if (id) request.user = { id };
    return true;
  }
}

@Controller('articles')
export class ArticlesController {
  @Get()
  list() {
    return [];
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL,
      limits: {
        default: [
          { name: 'address', limit: 600, windowMs: minutes(1) }, // Stops a flood, and no school.
          { name: 'person', limit: 20, windowMs: minutes(1), keyBy: 'user' }, // Or by address.
        ],
      },
    }),
  ],
  controllers: [ArticlesController],
  providers: [
    { provide: APP_GUARD, useClass: RateLimitGuard },
    { provide: APP_GUARD, useClass: AuthGuard },
  ],
})
export class ArticlesModule {}
