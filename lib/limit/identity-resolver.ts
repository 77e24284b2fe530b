import type { ExecutionContext } from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';
import { clientAddress, joinIdentity, normalizeAddress, ownText, valueAt } from './identity.js';
import type { ResolvedPolicy } from './limit.policy.js';
import type { ContextResolver, FromContext, KeyBy, KeyPart } from './limit.types.js';
import type { RequestLike } from './limited-call.js';

/** Whether guards that find out who the user is have to have run. A policy that counts failures sees to those. */
export function needsUser({ keyBy, cost, dynamicLimit, count }: ResolvedPolicy): boolean {
  const parts = [keyBy].flat() as readonly KeyPart[];
  if (parts.some((part) => part === 'user' || (typeof part === 'string' && part.startsWith('user.'))))
    return true;
  const asks = [...parts, cost, dynamicLimit].some((each) => typeof each === 'function');
  return asks && count === 'attempt';
}

/** Finds out whose request it is, with the functions and providers that the app has given. */
export class IdentityResolver {
  readonly #resolvers = new Map<unknown, (context: ExecutionContext) => unknown>();
  #looksAtProxy = true;

  constructor(
    private readonly moduleRef: ModuleRef,
    private readonly ipv6Subnet: number,
    private readonly warn: (message: string) => void,
  ) {}

  /**
   * What a value of the context is read by: the function itself, or the provider of that class.
   *
   * @throws when there is no such provider
   */
  resolver<T>(value: FromContext<T>): (context: ExecutionContext) => T | Promise<T> {
    let resolve = this.#resolvers.get(value);
    if (!resolve) this.#resolvers.set(value, (resolve = this.#createResolver(value)));
    return resolve as (context: ExecutionContext) => T | Promise<T>;
  }

  /**
   * The key of a request. A part that is missing falls back to the address, never to one bucket for all. What has no
   * address, as a message, is known by the other parts; undefined if one of those is missing.
   */
  async identityOf(
    keyBy: KeyBy,
    context: ExecutionContext,
    request: RequestLike,
  ): Promise<string | undefined> {
    const wanted = (Array.isArray(keyBy) ? keyBy : [keyBy]) as readonly KeyPart[];
    const parts = hasAddress(request) ? wanted : wanted.filter((part) => part !== 'ip');
    const found = await Promise.all(parts.map((part) => this.#find(part, context, request)));
    if (parts.length > 0 && found.every((value) => value !== undefined))
      return joinIdentity(parts.map((part, i) => [labelOf(part), found[i] as string]));
    return hasAddress(request) ? joinIdentity([['ip', this.#address(request)]]) : undefined;
  }

  async #find(part: KeyPart, context: ExecutionContext, request: RequestLike): Promise<string | undefined> {
    if (typeof part === 'function') return ownText(await this.resolver(part)(context));
    if (part === 'ip') return this.#address(request);
    if (part === 'user') return valueAt(request, 'user.id') ?? valueAt(request, 'user.sub');
    return valueAt(request, part);
  }

  #address(request: RequestLike): string {
    if (this.#looksAtProxy) this.#checkProxy(request);
    return clientAddress(request, this.ipv6Subnet);
  }

  /** The first request that came through a proxy tells whether its word is taken. */
  #checkProxy({ headers, ip, socket }: RequestLike): void {
    if (headers['x-forwarded-for'] === undefined) return;
    this.#looksAtProxy = false;
    const peer = socket?.remoteAddress ?? '';
    if (normalizeAddress(ip ?? peer, 128) !== normalizeAddress(peer, 128)) return;
    this.warn(
      'RATE_LIMIT_UNTRUSTED_PROXY: A request came with X-Forwarded-For, but the app does not trust proxies: all clients ' +
        "behind one are limited together, by its address. Set Express' `trust proxy` or Fastify's `trustProxy` if there " +
        'is one; for WebSockets give a `keyBy` (docs/rate-limits.md).',
    );
  }

  #createResolver(value: FromContext<unknown>): (context: ExecutionContext) => unknown {
    if (!isResolverClass(value)) return value as (context: ExecutionContext) => unknown;
    const provider = this.moduleRef.get<ContextResolver<unknown>>(value, { strict: false });
    return (context) => provider.resolve(context);
  }
}

const isResolverClass = (value: FromContext<unknown>): boolean =>
  typeof (value as { prototype?: { resolve?: unknown } }).prototype?.resolve === 'function';

/** A message has none; nor has a socket whose adapter does not tell it. */
const hasAddress = ({ ip, socket }: RequestLike): boolean => ip !== undefined || socket !== undefined;

const labelOf = (part: KeyPart): string => (typeof part === 'function' ? 'key' : part);
