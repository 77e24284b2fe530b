// before.ts
import {
  Body,
  Controller,
  Get,
  HttpCode,
  HttpException,
  Ip,
  Module,
  Post,
  UnauthorizedException,
} from '@nestjs/common';
import { RateLimiterMemory, type RateLimiterRes } from 'rate-limiter-flexible';

const tooMany = (denied: RateLimiterRes | Error): never => {
  if (denied instanceof Error) throw denied;
  throw new HttpException(`Try again in ${Math.ceil(denied.msBeforeNext / 1000)} s.`, 429);
};

@Controller()
export class AppController {
  private readonly search = new RateLimiterMemory({ points: 5, duration: 60 });
  private readonly failures = new RateLimiterMemory({ points: 3, duration: 3600, blockDuration: 900 });

  @Get('search')
  async find(@Ip() ip: string) {
    await this.search.consume(ip).catch(tooMany);
    return [];
  }

  @Get('export')
  async export(@Ip() ip: string) {
    await this.search.consume(ip, 3).catch(tooMany); // costs three
    return [];
  }

  @Post('login')
  @HttpCode(200)
  async login(@Ip() ip: string, @Body() { email, password }: { email: string; password: string }) {
    const key = `${ip} ${email.toLowerCase()}`;
    const known = await this.failures.get(key);
    if (known && known.consumedPoints > 3) tooMany(known);
    if (password === 'right') {
      await this.failures.delete(key);
      return 'welcome';
    }
    await this.failures.consume(key).catch(tooMany);
    throw new UnauthorizedException();
  }
}

@Module({ controllers: [AppController] })
export class AppModule {}
