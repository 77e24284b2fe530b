// custom-text.ts
import { type ArgumentsHost, Catch, HttpException, Module } from '@nestjs/common';
import { APP_FILTER, BaseExceptionFilter } from '@nestjs/core';
import { TooManyAttemptsError } from 'nestjs-syncguard';

@Catch(HttpException)
export class SlowDownFilter extends BaseExceptionFilter {
  override catch(error: HttpException, host: ArgumentsHost): void {
    const denied = error.cause instanceof TooManyAttemptsError ? error.cause : undefined;
    const text = `Slow down, and come back in ${denied?.retryAfterSecs} s.`;
    super.catch(denied ? new HttpException(text, 429) : error, host); // Retry-After is set already
  }
}

@Module({ providers: [{ provide: APP_FILTER, useClass: SlowDownFilter }] })
export class SlowDownModule {}
