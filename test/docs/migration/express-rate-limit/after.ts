// after.ts
import {
  Body,
  Controller,
  Get,
  HttpCode,
  type INestApplication,
  Module,
  Post,
  UnauthorizedException,
} from '@nestjs/common';
import { minutes, rateLimit, RateLimit, SyncGuardModule } from 'nestjs-syncguard';

@Controller()
export class AppController {
  @Get('items')
  list() {
    return [];
  }

  @Get('health')
  health() {
    return 'ok';
  }

  @Post('login')
  @HttpCode(200)
  @RateLimit({
    limit: 3,
    windowMs: minutes(1),
    count: 'failure',
    isFailure: (_error, { statusCode }) => statusCode >= 400,
    message: () => ({ error: 'Too many tries.' }),
  })
  login(@Body('password') password: string) {
    if (password !== 'right') throw new UnauthorizedException();
    return 'welcome';
  }
}

@Module({
  imports: [
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL,
      limits: { default: { limit: 20, windowMs: minutes(1) } },
      limit: { allow: ['/health'], headers: 'legacy' },
    }),
  ],
  controllers: [AppController],
})
export class AppModule {}

export function setUp(app: INestApplication) {
  app.use(rateLimit(app)); // 404s and static files too
}
