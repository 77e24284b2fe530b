import { Controller, type ExecutionContext, Get, Post, type Type } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import {
  type AbuseLimiterService,
  hours,
  type LimitPolicy,
  minutes,
  rateLimit,
  RateLimit,
  seconds,
  SkipRateLimit,
} from 'nestjs-syncguard';

const tokensOf = (_context: ExecutionContext): number => 1;
const perAddress: LimitPolicy = { limit: 100, windowMs: seconds(10) };
const perAccount: LimitPolicy = { ...perAddress, keyBy: 'user' };

export const shapes: LimitPolicy[] = [
  { limit: 100, windowMs: seconds(10) }, // 1: wait until the oldest attempt has left the window
  { limit: 5, windowMs: minutes(1), blockMs: minutes(15) }, // 2: one call too many blocks
  {
    temp: { windowMs: minutes(1), threshold: 5, blockMs: minutes(1) }, // 3: two windows over the same attempts
    long: { windowMs: hours(1), threshold: 20, blockMs: hours(1) },
  },
];

export const quota: LimitPolicy[] = [
  { limit: 1_000_000, windowMs: hours(1), algorithm: 'fixed-window', cost: (context) => tokensOf(context) },
];

export const tried: LimitPolicy[] = [{ name: 'search', limit: 30, windowMs: minutes(1), shadow: true }];

export const form: LimitPolicy = {
  count: 'failure',
  limit: 5,
  windowMs: minutes(1),
  isFailure: (_error, { location }) => location?.startsWith('/login?error'), // a form that redirects in both cases
};

@Controller()
export class Routes {
  @Get()
  @RateLimit('login') // a policy by name: yours, or a preset
  @RateLimit({ limit: 100, windowMs: seconds(10) }) // a policy in place
  @RateLimit([perAddress, perAccount]) // several policies
  @RateLimit('upload', { override: true }) // replaces `default` and the limits of the class (on a class: of its bases)
  @SkipRateLimit('default') // skips one limit, by its key or name
  @SkipRateLimit() // skips all (on a class: except for those on its methods)
  all() {}

  @Post()
  @RateLimit({
    keyBy: ['ip', 'body.email'],
    count: 'failure',
    resetOnSuccess: true,
    temp: { windowMs: minutes(1), threshold: 5, blockMs: minutes(1) },
  })
  login() {}
}

export async function middleware(AppModule: Type) {
  const app = await NestFactory.create(AppModule);
  app.use(rateLimit(app)); // the policy `default`; `rateLimit(app, 'edge')` another one of `limits`
}

export async function service(
  limiter: AbuseLimiterService,
  user: { id: string },
  { ip, email, files }: { ip: string; email: string; files: number },
) {
  const decision = await limiter.check(
    `export:${user.id}`,
    { name: 'export', limit: 10, windowMs: hours(1) },
    { cost: files },
  );
  // { allowed: true, shortCount, longCount, remaining, resetMs, degraded? }
  // { allowed: false, scope: 'temp' | 'long' | 'manual', reason, retryAfterSecs, retryAfterMs, shortCount, longCount, degraded? }

  await limiter.unblock({ ip, 'body.email': email }, 'login'); // { blocked: true, attempts: 5 }

  await limiter.lift('login', { 'body.email': email }); // { lifted: 2 }
  return decision;
}
