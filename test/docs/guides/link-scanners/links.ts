// links.ts
import {
  BadRequestException,
  Body,
  Controller,
  type ExecutionContext,
  Get,
  GoneException,
} from '@nestjs/common';
import { Header, HttpCode, Module, NotFoundException, Param, Post } from '@nestjs/common';
import { days, RateLimit, SecretService, SyncGuardModule } from 'nestjs-syncguard';
import { randomUUID } from 'node:crypto';

const isCode = (code: unknown): code is string =>
  typeof code === 'string' && /^\d{6}$/.test(code);

const tries = (context: ExecutionContext) =>
  isCode(context.switchToHttp().getRequest<{ body?: { code?: unknown } }>().body?.code) ? 1 : 0;

@Controller('links')
export class LinksController {
  constructor(private readonly secrets: SecretService) {}

  @Post()
  async create(@Body() { payload, code }: { payload: string; code: string }) {
    const link = randomUUID();
    const secret = { id: `${link}:${code}`, payload, views: 1, ttlMs: days(7) };
    const { receipt } = await this.secrets.create(secret);
    return { link: `/links/${link}`, receipt };
  }

  @Get(':link') // And HEAD of it. A page with a form, which asks for nothing.
  page() {
    return 'Enter the code that the sender told you.';
  }

  @Post(':link/open') // The form. Three codes may be tried for a link.
  @RateLimit({ name: 'codes', limit: 3, windowMs: days(7), keyBy: 'params.link', cost: tries })
  @HttpCode(200)
  @Header('Cache-Control', 'no-store')
  async open(@Param('link') link: string, @Body('code') code?: unknown) {
    if (!isCode(code)) throw new BadRequestException('Enter the six digits.');
    const secret = await this.secrets.view(`${link}:${code}`);
    if (secret.ok) return { payload: secret.payload };
    throw secret.reason === 'not_found'
      ? new NotFoundException()
      : new GoneException(secret.reason);
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [LinksController],
})
export class LinksModule {}
