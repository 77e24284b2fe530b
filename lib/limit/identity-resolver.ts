import type { ExecutionContext } from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';
import {
  clientAddress,
  idText,
  joinIdentity,
  normalizeAddress,
  singleAddress,
  userIdOf,
  valueAt,
} from './identity.js';
import type { ResolvedLimitOptions } from './limit.options.js';
import type { ContextResolver, FromContext, KeyBy, KeyPart } from './limit.types.js';
import type { LimitedCall, RequestLike } from './limited-call.js';

export type IdentityOptions = Pick<ResolvedLimitOptions, 'ipv6Subnet' | 'user' | 'address'>;

/** Finds out whose request it is, with the functions and providers that the app has given. */
export class IdentityResolver {
  readonly #resolvers = new Map<unknown, (context: ExecutionContext) => unknown>();
  readonly #warned = new Set<string>();
  #looksAtProxy = true;

  constructor(
    private readonly moduleRef: ModuleRef,
    private readonly options: IdentityOptions,
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
   * address, as a message, is known by the other parts; undefined if one of those is missing. The part `'route'` says
   * where, never who: it comes last, and a fallback keeps it.
   */
  async identityOf(
    keyBy: KeyBy,
    context: ExecutionContext,
    { request, route }: LimitedCall,
  ): Promise<string | undefined> {
    if (keyBy === 'ip') return this.#byAddress(await this.#address(context, request), []);
    const parts = (Array.isArray(keyBy) ? keyBy : [keyBy]) as readonly KeyPart[];
    const where: Labelled[] = parts.includes('route') ? [['route', route]] : [];
    const who = parts.filter((part) => part !== 'route');
    const found = await Promise.all(who.map((part) => this.#find(part, context, request)));
    const known = who.flatMap((part, i): Labelled[] => {
      const value = found[i];
      return value === undefined ? [] : [[labelOf(part), value]];
    });
    const addressless = found.filter((value, i) => value === undefined && who[i] === 'ip').length;
    if (known.length > 0 && known.length + addressless === who.length)
      return joinIdentity([...known, ...where]);
    return this.#byAddress(await this.#address(context, request), where);
  }

  #byAddress(address: string | undefined, where: readonly Labelled[]): string | undefined {
    return address === undefined ? undefined : joinIdentity([['ip', address], ...where]);
  }

  async #find(part: KeyPart, context: ExecutionContext, request: RequestLike): Promise<string | undefined> {
    if (typeof part === 'function') return idText(await this.resolver<unknown>(part)(context));
    if (part === 'ip') return this.#address(context, request);
    if (part === 'user') return this.#userId(context, request);
    const value = valueAt(request, part);
    if (value === undefined && part.startsWith('body.')) this.#checkBody(part, context, request);
    return value;
  }

  async #userId(context: ExecutionContext, request: RequestLike): Promise<string | undefined> {
    const { user } = this.options;
    const id = user ? idText(await this.resolver<unknown>(user)(context)) : userIdOf(request.user);
    if (id === undefined && request.user !== undefined && request.user !== null)
      this.#warnOnce(
        user
          ? "RATE_LIMIT_NO_USER: request.user is there, but the function of `limit.user` gave no id, so its calls are counted by address, where `keyBy` has 'user'."
          : "RATE_LIMIT_NO_USER: request.user is there, but has none of id, sub, userId, _id and uid, so its calls are counted by address, where `keyBy` has 'user'. Say where the id is: `limit: { user: (context) => id }`.",
      );
    return id;
  }

  /** Of what has no address, undefined. */
  #address(
    context: ExecutionContext,
    request: RequestLike,
  ): string | undefined | Promise<string | undefined> {
    if (this.options.address !== undefined) return this.#toldAddress(context, request);
    if (!hasAddress(request)) return undefined;
    if (this.#looksAtProxy) this.#checkProxy(request);
    return clientAddress(request, this.options.ipv6Subnet);
  }

  /** What `limit.address` says; whoever comes past the CDN says nothing, and has the address of the connection. */
  async #toldAddress(context: ExecutionContext, request: RequestLike): Promise<string | undefined> {
    const { address, ipv6Subnet } = this.options;
    const told =
      typeof address === 'string'
        ? request.headers[address.slice('headers.'.length)]
        : await this.resolver<unknown>(address as FromContext<unknown>)(context);
    const found = singleAddress(told, ipv6Subnet);
    if (found !== undefined || !hasAddress(request)) return found;
    this.#warnOnce(
      'RATE_LIMIT_NO_ADDRESS: a request came without one valid address where `limit.address` looks for it: it is counted by the address of its connection. Let the origin accept the CDN or proxy alone.',
    );
    return normalizeAddress(request.socket?.remoteAddress ?? request.ip ?? '', ipv6Subnet);
  }

  /** Multipart forms are read by an interceptor, later than any limit is asked. */
  #checkBody(part: string, context: ExecutionContext, { headers, body }: RequestLike): void {
    if (context.getType() !== 'http' || !/^multipart\//i.test(String(headers['content-type']))) return;
    if (typeof body === 'object' && body !== null && Object.keys(body).length > 0) return;
    this.#warnOnce(
      `RATE_LIMIT_BODY_NOT_PARSED: a multipart request was counted by address, since its body is not parsed when \`${part}\` is looked for. Send the field as JSON or in a header, or parse the form in a middleware.`,
    );
  }

  #warnOnce(message: string): void {
    const [code = ''] = message.split(':');
    if (this.#warned.has(code)) return;
    this.#warned.add(code);
    this.warn(message);
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

type Labelled = readonly [label: string, value: string];

const labelOf = (part: KeyPart): string => (typeof part === 'function' ? 'key' : part);
