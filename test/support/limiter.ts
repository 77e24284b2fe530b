import { AbuseLimiterService, type AbuseLimiterOptions } from '../../lib/limit/abuse-limiter.service.js';
import type { LimitBackend } from '../../lib/limit/limit.backend.js';
import { LimitDecisions, type LimitDecisionsOptions } from '../../lib/limit/limit.decisions.js';

/** Builds the limiter as the module does. */
export const limiterOn = (
  backend: LimitBackend,
  fallback: LimitBackend,
  options: AbuseLimiterOptions & { readonly limit: LimitDecisionsOptions },
): AbuseLimiterService =>
  new AbuseLimiterService(new LimitDecisions(backend, fallback, options.limit), options);
