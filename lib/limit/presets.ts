import type { CallEnd, LimitPolicy } from './limit.types.js';

const SECOND = 1_000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** Not there, or not any more: of accounts and codes that is a wrong guess. 401 and 403 are by their status. */
const isGone = (_error: unknown, { statusCode }: CallEnd): true | undefined =>
  statusCode === 404 || statusCode === 410 || undefined;

/** Also what the handler itself calls a bad request. A pipe that refuses a form has judged no guess. */
const isRefused = (error: unknown, end: CallEnd): true | undefined =>
  isGone(error, end) ?? ((end.handled && (end.statusCode === 400 || end.statusCode === 422)) || undefined);

const escalation = { factor: 2, maxBlockMs: DAY, strikeTtlMs: DAY };

/**
 * Failed logins (401, 403, 404 and 410, and the handler's 400 and 422), in three ways: by address and account together (5 in a minute: blocked for a minute; 20 in an
 * hour: for an hour), by address over all accounts (50 in 10 minutes), and by account over all addresses (100
 * in an hour). The last is wide, so that nobody locks a victim out by name alone. Expects `body.email`.
 */
const login = [
  {
    keyBy: ['ip', 'body.email'],
    count: 'failure',
    isFailure: isRefused,
    resetOnSuccess: true,
    onError: 'closed',
    temp: { windowMs: MINUTE, threshold: 5, blockMs: MINUTE },
    long: { windowMs: HOUR, threshold: 20, blockMs: HOUR },
    escalation,
  },
  {
    keyBy: 'ip',
    count: 'failure',
    isFailure: isRefused,
    onError: 'closed',
    temp: { windowMs: 10 * MINUTE, threshold: 50, blockMs: 10 * MINUTE },
    escalation,
  },
  {
    keyBy: 'body.email',
    count: 'failure',
    isFailure: isRefused,
    onError: 'closed',
    temp: { windowMs: HOUR, threshold: 100, blockMs: 10 * MINUTE },
  },
] satisfies LimitPolicy[];

/**
 * One-time codes. By address and account: 5 wrong ones in 10 minutes block for 15; 10 in a day for a day. By account over
 * all addresses: 20 in an hour or 100 in a day block for 10 minutes, without what may be an empty form (400 and 422), so
 * that nobody locks a victim out. Expects `body.email`.
 */
const otp = [
  {
    keyBy: ['ip', 'body.email'],
    count: 'failure',
    isFailure: isRefused,
    resetOnSuccess: true,
    onError: 'closed',
    temp: { windowMs: 10 * MINUTE, threshold: 5, blockMs: 15 * MINUTE },
    long: { windowMs: DAY, threshold: 10, blockMs: DAY },
  },
  {
    keyBy: 'body.email',
    count: 'failure',
    isFailure: isGone,
    onError: 'closed',
    temp: { windowMs: HOUR, threshold: 20, blockMs: 10 * MINUTE },
    long: { windowMs: DAY, threshold: 100, blockMs: 10 * MINUTE },
  },
] satisfies LimitPolicy[];

/** New accounts: 5 an hour and 20 a day from one address. What fails counts for nothing. */
const signup = {
  keyBy: 'ip',
  count: 'success',
  temp: { windowMs: HOUR, limit: 5, blockMs: HOUR },
  long: { windowMs: DAY, limit: 20, blockMs: DAY },
} satisfies LimitPolicy;

/** An API: 100 calls in 10 seconds from one address, without a block. */
const api = { keyBy: 'ip', limit: 100, windowMs: 10 * SECOND } satisfies LimitPolicy;

/**
 * Policies with numbers that one would otherwise guess: `@RateLimit('login')` works without a `limits` option. A
 * policy of your own by the same name wins; take a preset apart to change a number.
 *
 * @example limits: { api: { ...presets.api, limit: 500 } }
 */
export const presets = { login, otp, signup, api };
