import { days, hours, minutes, seconds } from '../core/time.js';
import type { CallEnd } from './limit.types.js';
import type { LimitPolicy } from './policy.types.js';

/** 404 and 410 are failures: the account or code that was guessed does not exist. 401 and 403 are failures by default. */
const isGone = ({ statusCode }: CallEnd): boolean => statusCode === 404 || statusCode === 410;

/** Answers which say that nothing was judged: a service behind this one is away. */
const JUDGED_NOTHING = [502, 503, 504];

/**
 * Whatever the handler threw or refused with is a failure. A null user or a search that throws ends as 500 for a wrong guess,
 * in a guard or pipe that judges as well. With any other status these have judged nothing: a pipe has refused the form.
 */
const isRefused = (error: unknown, end: CallEnd): true | undefined =>
  isGone(end) ||
  ((end.handled ? error !== undefined || end.statusCode >= 400 : isBroken(end)) &&
    !JUDGED_NOTHING.includes(end.statusCode)) ||
  undefined;

/** The end of code that broke or hung, whatever it was about to say. */
const isBroken = ({ statusCode }: CallEnd): boolean => statusCode === 408 || statusCode >= 500;

/** An error of the server may concern all clients of an address, so it does not count for the address alone. */
const isRefusedByAddress = (error: unknown, end: CallEnd): boolean | undefined =>
  end.statusCode >= 500 ? false : isRefused(error, end);

/** Forms that are refused for their shape do not count for the account alone. Anybody can send them. */
const isRefusedByAccount = (error: unknown, end: CallEnd): boolean | undefined =>
  end.statusCode === 400 || end.statusCode === 422 ? false : isRefused(error, end);

/** Marks the policies whose `keyBy` names an account, and their copies. */
export const NAMES_ACCOUNT = Symbol.for('syncguard:names-account');

const namingAccount = <Policy extends object>(policy: Policy): Policy =>
  Object.assign(policy, { [NAMES_ACCOUNT]: true });

/** Guesses at a password or a code, which no guard of the whole app judges. */
const guesses = namingAccount({
  count: 'failure',
  judgedBy: 'handler',
  isFailure: isRefused,
  onError: 'closed',
} as const);

const escalation = { factor: 2, maxBlockMs: days(1), strikeTtlMs: days(1) };

/** Guesses from one address at any number of accounts. */
const guessesByAddress = {
  keyBy: 'ip',
  ...guesses,
  isFailure: isRefusedByAddress,
  temp: { windowMs: minutes(10), threshold: 50, blockMs: minutes(10) },
  escalation,
} satisfies LimitPolicy;

/**
 * Limits failed logins: 401, 403, 404, 410, and whatever else the handler threw or refused with, but 502, 503 and 504. Of
 * guards and pipes 408 and 5xx count as well. An error of the server (5xx) fills the windows and blocks nobody. Expects
 * `body.email`.
 *
 * - By address and account together: 5 in a minute block for a minute, 20 in an hour block for an hour.
 * - By address: 50 in 10 minutes block for 10 minutes. Errors of the server do not count here.
 * - By account: 100 in an hour block for 10 minutes. The limit is wide, so that it is hard to lock another user out.
 *
 * The blocks of the first two get longer: each one that follows within a day of the last lasts twice as long, up to a
 * day.
 */
const login = [
  {
    keyBy: ['ip', 'body.email'],
    ...guesses,
    resetOnSuccess: true,
    temp: { windowMs: minutes(1), threshold: 5, blockMs: minutes(1) },
    long: { windowMs: hours(1), threshold: 20, blockMs: hours(1) },
    escalation,
  },
  guessesByAddress,
  {
    keyBy: 'body.email',
    ...guesses,
    temp: { windowMs: hours(1), threshold: 100, blockMs: minutes(10) },
  },
] satisfies LimitPolicy[];

/**
 * Limits wrong one-time codes. The same answers count as for `login`. Expects `body.email`.
 *
 * - By address and account together: 5 in 10 minutes block for 15 minutes, 10 in a day block for a day.
 * - By account: 20 in an hour, or 100 in a day, block for 10 minutes. Each block that follows within a day of the last lasts
 *   twice as long, up to an hour. 400 and 422 do not count here, so that a user cannot be locked out with empty forms.
 * - By address: as for `login`.
 */
const otp = [
  {
    keyBy: ['ip', 'body.email'],
    ...guesses,
    resetOnSuccess: true,
    temp: { windowMs: minutes(10), threshold: 5, blockMs: minutes(15) },
    long: { windowMs: days(1), threshold: 10, blockMs: days(1) },
  },
  {
    keyBy: 'body.email',
    ...guesses,
    isFailure: isRefusedByAccount,
    temp: { windowMs: hours(1), threshold: 20, blockMs: minutes(10) },
    long: { windowMs: days(1), threshold: 100, blockMs: minutes(10) },
    // A window begins afresh after its block, so without growing blocks the day would hold no more than its hours do.
    escalation: { ...escalation, maxBlockMs: hours(1) },
  },
  guessesByAddress,
] satisfies LimitPolicy[];

/** Limits new accounts by address: 5 in an hour block for an hour, 20 in a day for a day. A failed sign-up does not count. */
const signup = {
  keyBy: 'ip',
  count: 'success',
  temp: { windowMs: hours(1), limit: 5, blockMs: hours(1) },
  long: { windowMs: days(1), limit: 20, blockMs: days(1) },
} satisfies LimitPolicy;

/** Limits calls of an API: 100 in 10 seconds from one address, without a block. */
const api = { keyBy: 'ip', limit: 100, windowMs: seconds(10) } satisfies LimitPolicy;

/**
 * Policies for common routes. `@RateLimit('login')` works without a `limits` option. A policy of your own with the same name
 * replaces the preset. To change a number, copy the preset.
 *
 * @example limits: { api: { ...presets.api, limit: 500 } }
 */
export const presets = { login, otp, signup, api };
