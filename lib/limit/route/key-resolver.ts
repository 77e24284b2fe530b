import type { ExecutionContext } from '@nestjs/common';
import type { ModuleRef } from '@nestjs/core';
import { missingPartOf } from '../../core/validate.js';
import { warningOnce } from '../../core/warn-once.js';
import { idText, joinKeyParts, type Labelled, userIdOf } from '../../transport/request-parts.js';
import { type KeyPath, keyPath, normalizeAddress, singleAddress, valueAt } from '../key-parts.js';
import { KeyTexts } from '../key-texts.js';
import type { ResolvedLimitOptions } from '../limit.options.js';
import type { ResolvedPolicy } from '../limit.policy.js';
import type { ContextResolver, FromContext, KeyPart } from '../policy.types.js';
import { type RequestLike, routeName } from './limited-call.js';
import type { CallVisit } from './call-visit.js';

/**
 * Finds the key of a request: the text by which it is counted. Runs the functions and providers of the app that `keyBy` names.
 */
export class KeyResolver {
  readonly #resolvers = new Map<unknown, (context: ExecutionContext) => unknown>();
  readonly #paths = new Map<string, KeyPath>();
  readonly #texts: KeyTexts;
  readonly #warnOnce: (message: string) => undefined;
  #looksForProxy = true;

  constructor(
    private readonly moduleRef: ModuleRef,
    private readonly options: ResolvedLimitOptions,
    private readonly warn: (message: string) => void,
  ) {
    this.#warnOnce = warningOnce(warn);
    this.#texts = new KeyTexts(options.normalize, this.#warnOnce);
  }

  /**
   * Returns the function that reads a value from the context: the function itself, or `resolve` of the provider of that
   * class.
   *
   * @throws the error of Nest if there is no such provider
   */
  resolver<T>(value: FromContext<T>): (context: ExecutionContext) => T | Promise<T> {
    if (!isProvider(value)) return value;
    let resolve = this.#resolvers.get(value);
    if (!resolve) {
      const provider = this.moduleRef.get<ContextResolver<unknown>>(value, { strict: false });
      this.#resolvers.set(value, (resolve = (context) => provider.resolve(context)));
    }
    return resolve as (context: ExecutionContext) => T | Promise<T>;
  }

  /** Returns the key of a request if it is one text that the request has. Otherwise `keyFor` finds it. */
  keyAtOnce(policy: ResolvedPolicy, visit: CallVisit): string | undefined {
    const { keyBy } = policy;
    if (typeof keyBy !== 'string' || keyBy === 'route') return undefined;
    const value = this.#valueAtOnce(keyBy, policy, visit);
    return value === undefined ? undefined : joinKeyParts([[keyBy, value]]);
  }

  /**
   * Returns the key of a request. If a part is missing, the key is the address, so that clients without the part are
   * not counted together. A message has no address. So the part `'ip'` is left out of its key, and the key is undefined
   * if any other part is missing. So is that of a client that has left, since its address is no longer known. The part
   * `'route'` names no client. It stands last in the key, also if the key is the address.
   */
  async keyFor(policy: ResolvedPolicy, visit: CallVisit): Promise<string | undefined> {
    const { keyBy } = policy;
    if (keyBy === 'ip') return this.#byAddress(await this.#address(visit), []);
    const parts = (Array.isArray(keyBy) ? keyBy : [keyBy]) as readonly KeyPart[];
    const place: Labelled[] = parts.includes('route') ? [['route', routeName(visit.call.route)]] : [];
    const clientParts = parts.filter((part) => part !== 'route');
    const found = await Promise.all(clientParts.map((part) => this.#find(part, policy, visit)));
    const known = clientParts.flatMap((part, i): Labelled[] => {
      const value = found[i];
      return value === undefined ? [] : [[typeof part === 'function' ? 'key' : part, value]];
    });
    const addressless = found.filter((value, i) => value === undefined && clientParts[i] === 'ip').length;
    if (known.length < clientParts.length && visit.isGone) return undefined;
    if (known.length > 0 && known.length + addressless === clientParts.length)
      return joinKeyParts([...known, ...place]);
    return this.#byAddress(await this.#address(visit), place);
  }

  #valueAtOnce(part: string, policy: ResolvedPolicy, visit: CallVisit): string | undefined {
    const { request } = visit.call;
    if (part === 'user') return this.options.user ? undefined : userIdOf(request.user);
    if (part !== 'ip') return this.#textAt(part, policy, request);
    const address = this.options.address === undefined ? this.#address(visit) : undefined;
    return typeof address === 'string' ? address : undefined;
  }

  #byAddress(address: string | undefined, place: readonly Labelled[]): string | undefined {
    return address === undefined ? undefined : joinKeyParts([['ip', address], ...place]);
  }

  #textAt(part: string, { namesAccount }: ResolvedPolicy, request: RequestLike): string | undefined {
    let path = this.#paths.get(part);
    if (!path) this.#paths.set(part, (path = keyPath(part)));
    return this.#texts.of(path, valueAt(request, path), namesAccount);
  }

  async #find(part: KeyPart, policy: ResolvedPolicy, visit: CallVisit): Promise<string | undefined> {
    if (typeof part === 'function') return knownText(await this.resolver<unknown>(part)(visit.context));
    if (part === 'ip') return this.#address(visit);
    if (part === 'user') return this.#userId(visit);
    const value = this.#textAt(part, policy, visit.call.request);
    if (value === undefined && part.startsWith('body.') && visit.isHttp)
      this.#checkBody(part, visit.call.request);
    return value;
  }

  async #userId({ context, call: { request } }: CallVisit): Promise<string | undefined> {
    const { user } = this.options;
    const id = user ? idText(await this.resolver<unknown>(user)(context)) : userIdOf(request.user);
    if (id === undefined && request.user !== undefined && request.user !== null)
      this.#warnOnce(
        user
          ? "RATE_LIMIT_NO_USER: The function `limit.user` returned no id for a request that has a `request.user`. Policies with `keyBy: 'user'` count such requests by address."
          : "RATE_LIMIT_NO_USER: `request.user` has none of the properties id, sub, userId, _id and uid. Policies with `keyBy: 'user'` count such requests by address. Say where the id is: `limit: { user: (context) => id }`.",
      );
    return id;
  }

  /** Returns undefined for calls that have no address. */
  #address(visit: CallVisit): string | undefined | Promise<string | undefined> {
    const { request } = visit.call;
    if (this.options.address !== undefined) return this.#configuredAddress(visit);
    if (!hasAddress(request)) return undefined;
    if (this.#looksForProxy) this.#checkProxy(request);
    const address = request.ip ?? request.socket?.remoteAddress ?? '';
    return address === '' ? this.#ofUnknown(visit) : normalizeAddress(address, this.options.ipv6Subnet);
  }

  /** A connection of a living client that has no address is a Unix socket, or the adapter of a serverless platform. */
  #ofUnknown(visit: CallVisit): string | undefined {
    if (visit.isGone) return undefined;
    this.#warnOnce(
      'RATE_LIMIT_NO_ADDRESS: A request came over a connection without an address, such as a Unix socket. Policies that count by address count all such requests together. Say where the address is: `limit: { address: ... }`.',
    );
    return '';
  }

  /**
   * Returns the address that `limit.address` finds. If it finds none, the request has probably not come through the CDN
   * or proxy that sets the address. Then this logs a warning and returns the address of the connection.
   */
  async #configuredAddress(visit: CallVisit): Promise<string | undefined> {
    const { request } = visit.call;
    const { address, ipv6Subnet } = this.options;
    const value =
      typeof address === 'string'
        ? request.headers[address.slice('headers.'.length)]
        : await this.resolver<unknown>(address as FromContext<unknown>)(visit.context);
    const found = singleAddress(value, ipv6Subnet);
    if (found !== undefined || !hasAddress(request) || visit.isGone) return found;
    this.#warnOnce(
      'RATE_LIMIT_NO_ADDRESS: A request had no single valid address where `limit.address` looks for it. It is counted by the address of its connection. Make sure that the server accepts connections of your CDN or proxy only.',
    );
    return normalizeAddress(request.socket?.remoteAddress ?? request.ip ?? '', ipv6Subnet);
  }

  /**
   * Warns if the body lacks a part of the key, since the field may have another name in this app. An interceptor parses
   * multipart forms, and interceptors run after the limits, so of these it says that.
   */
  #checkBody(part: string, { headers, body }: RequestLike): void {
    if (typeof body === 'object' && body !== null && Object.keys(body).length > 0)
      return this.#warnOnce(
        `RATE_LIMIT_NO_FIELD: A request has no text in \`${part}\`, so it is counted by its address alone. If your clients send that value in another field, name the field in \`keyBy\` of the policy.`,
      );
    if (!/^multipart\//i.test(String(headers['content-type']))) return;
    this.#warnOnce(
      `RATE_LIMIT_BODY_NOT_PARSED: A multipart request is counted by address, because its body is not parsed yet when the limit looks for \`${part}\`. Send the field as JSON or in a header, or parse the form in a middleware.`,
    );
  }

  /** Looks at the first request that has the header of a proxy, and warns if the app does not trust that proxy. */
  #checkProxy({ headers, ip, socket }: RequestLike): void {
    if (headers['x-forwarded-for'] === undefined) return;
    this.#looksForProxy = false;
    const peer = socket?.remoteAddress ?? '';
    if (normalizeAddress(ip ?? peer, 128) !== normalizeAddress(peer, 128)) return;
    this.warn(
      'RATE_LIMIT_UNTRUSTED_PROXY: A request has the header X-Forwarded-For, but the app does not trust proxies. If it is ' +
        'behind a proxy, all clients are limited together, by the address of the proxy. Then set `trust proxy` of Express ' +
        'or `trustProxy` of Fastify. On a WebSocket gateway set a `keyBy` (docs/rate-limits.md).',
    );
  }
}

type Provider<T> = Exclude<FromContext<T>, (context: ExecutionContext) => T | Promise<T>>;

const isProvider = <T>(value: FromContext<T>): value is Provider<T> =>
  typeof (value as { prototype?: { resolve?: unknown } }).prototype?.resolve === 'function';

/** Returns the result of a function in `keyBy` as a text, or undefined if the text was built from a missing value. */
function knownText(value: unknown): string | undefined {
  const text = idText(value);
  // A missing part is found after a ':' only. With the ':' here, a result that is just "undefined" is found too.
  return text === undefined || missingPartOf(`:${text}`) !== undefined ? undefined : text;
}

/** A message has no address, and neither has a socket whose adapter does not pass it on. */
const hasAddress = ({ ip, socket }: RequestLike): boolean => ip !== undefined || socket !== undefined;
