import { SyncGuardConfigError } from '../core/errors.js';
import { invalidOption } from '../core/validate.js';
import type { KeyBy, KeyPart } from './policy.types.js';

/** The paths that `keyBy` may name. */
const KEY_PATH = /^(ip|user|route|(body|query|params|headers|user|session|cookies)(\.[^.]+)+)$/;

const partsOf = (keyBy: KeyBy): readonly KeyPart[] => [keyBy].flat();

/** Returns whether `keyBy` names the user, which is known only after the guards. */
export const isByUser = (keyBy: KeyBy): boolean =>
  partsOf(keyBy).some((part) => typeof part === 'string' && /^user(\.|$)/.test(part));

/** Returns whether `keyBy` distinguishes clients only by their address. */
export const isByAddress = (keyBy: KeyBy): boolean =>
  partsOf(keyBy).every((part) => part === 'ip' || part === 'route');

export const describeKeyBy = (keyBy: KeyBy): string =>
  partsOf(keyBy)
    .map((part) => (typeof part === 'function' ? 'a function' : `'${part}'`))
    .join(' and ');

export function resolveKeyBy(name: string, keyBy: unknown): KeyBy {
  const parts: readonly unknown[] = Array.isArray(keyBy) ? keyBy : [keyBy];
  const isPart = (part: unknown): boolean =>
    typeof part === 'function' || (typeof part === 'string' && KEY_PATH.test(part));
  if (parts.length > 0 && parts.every(isPart)) {
    for (const part of parts) if (typeof part === 'string') refuseForwardedFor(name, part);
    return keyBy as KeyBy;
  }
  throw invalidOption(
    name,
    `'ip', 'user', 'route', a path such as 'body.email', a function, or a list of these`,
    keyBy,
  );
}

/**
 * Refuses the headers of forwarded addresses. A proxy only adds to the value that a client sent, so a client could look
 * like another one at each call.
 */
export function refuseForwardedFor(name: string, path: string): string {
  if (!/^headers\.(x-forwarded-for|forwarded)$/i.test(path)) return path;
  throw new SyncGuardConfigError(`${name} must not be '${path}', because clients can write that header.`, {
    hint: "Use 'ip', and set `trust proxy` of Express or `trustProxy` of Fastify to your proxies.",
  });
}
