// before.ts
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
import { rateLimit } from 'express-rate-limit';

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
  login(@Body('password') password: string) {
    if (password !== 'right') throw new UnauthorizedException();
    return 'welcome';
  }
}

@Module({ controllers: [AppController] })
export class AppModule {}

export function setUp(app: INestApplication) {
  app.use(rateLimit({ windowMs: 60_000, limit: 20, skip: ({ path }) => path === '/health' }));
  app.use(
    '/login',
    rateLimit({
      windowMs: 60_000,
      limit: 3,
      skipSuccessfulRequests: true, // counts failures only
      message: { error: 'Too many tries.' },
    }),
  );
}
