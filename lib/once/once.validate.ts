import { pageOptions, type ResolvedPageOptions } from '../core/page.js';
import { oneOf } from '../core/validate.js';
import type { OnceListOptions, OnceRecord } from './once.types.js';

export const ONCE_STATES = ['running', 'done', 'failed', 'unknown'] as const satisfies OnceRecord['state'][];

export function validateList(options: OnceListOptions): {
  page: ResolvedPageOptions;
  state: OnceRecord['state'] | undefined;
} {
  const page = pageOptions(options, ['state']);
  return {
    page,
    state: options.state === undefined ? undefined : oneOf('state', options.state, ONCE_STATES),
  };
}
