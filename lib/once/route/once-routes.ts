import {
  type CallHandler,
  type CanActivate,
  type ExecutionContext,
  Inject,
  Injectable,
  Logger,
  type NestInterceptor,
  type OnModuleInit,
  SetMetadata,
} from '@nestjs/common';
import type { HttpAdapterHost, ModuleRef, ModulesContainer } from '@nestjs/core';
import { type Observable, tap } from 'rxjs';
import { SyncGuardConfigError } from '../../core/errors.js';
import { warningOnce } from '../../core/warn-once.js';
import { HttpRoutes, type RoutedRequest } from '../../transport/http-routes.js';
import { signalOf } from '../../transport/hang-up.decorator.js';
import { idText, userIdOf } from '../../transport/request-parts.js';
import { type OnceFrame, onceFrames } from '../current-once.js';
import { invalidCall, noCaller } from '../once.errors.js';
import {
  GUARDS,
  INTERCEPTORS,
  FILTERS,
  PATH,
  METHOD,
  SSE,
  writesResponse,
} from '../../transport/nest-metadata.js';
import type { OnceCall, OnceCaller } from '../once.options.js';
import type { OnceService } from '../once.service.js';
import { onSend, OnceReplay, ReplayFilter, visitOn, watchAnswer } from './once-answers.js';
import { keyInHeader, keyMissing, keyText, onceKey, valueAt } from './once-key.js';
import { ONCE_METHODS, ONCE_ROUTES, type OncePlan, planOf } from './once-plan.js';
import { OnceVisit } from './once-visit.js';

/** GET, OPTIONS and HEAD of Nest's `RequestMethod`. */
const SAFE_METHODS: readonly unknown[] = [0, 6, 7];

const SAFE: readonly string[] = ['GET', 'HEAD'];
const CONDITIONS = ['if-none-match', 'if-modified-since'];

/** The metadata that tells limits that a guard is of this package. */
const OUR_GUARD = Symbol.for('syncguard:guard');

/** Claims the run of a call after all guards. `@Once()` binds it. */
@Injectable()
@SetMetadata(OUR_GUARD, 'once')
export class OnceGuard implements CanActivate {
  @Inject(ONCE_ROUTES) private readonly routes!: Pick<OnceRoutes, 'enter'>;

  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    return this.routes.enter(context);
  }
}

/** Lets the handler know its run. It is the innermost interceptor. */
export const ONCE_INTERCEPTOR: NestInterceptor = {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    if (context.getType() !== 'http') return next.handle();
    const visit = visitOn(context.switchToHttp().getRequest<object>());
    const frame = visit?.frame ?? passing(context.getHandler());
    return onceFrames
      .run(frame, () => next.handle())
      .pipe(tap({ next: (value) => visit?.handled({ value }), error: (error) => visit?.handled({ error }) }));
  },
};

/** The frame of a call without a key, which the guard has let pass: its decorator looks for none in the arguments. */
const passing = (handler: object): OnceFrame => ({
  ...{ context: undefined, outer: undefined, active: true },
  ...{ handler: planOf(handler), around: (body: () => unknown) => body() },
});

export const REPLAY_FILTER = new ReplayFilter();

/** What `@Once()` binds to its method, each behind or inside all others of its kind. */
const BOUND = [
  [GUARDS, OnceGuard],
  [INTERCEPTORS, ONCE_INTERCEPTOR],
  [FILTERS, REPLAY_FILTER],
] as const;

/** Puts what a call over HTTP needs last: guards in their order, interceptors from the outside in, filters from the last on. */
export function bindLast(method: object): void {
  for (const [kind, ours] of BOUND) {
    const others = ((Reflect.getMetadata(kind, method) ?? []) as unknown[]).filter((each) => each !== ours);
    Reflect.defineMetadata(kind, [...others, ours], method);
  }
}

/** Answers the calls of routes with `@Once()`. */
@Injectable()
export class OnceRoutes implements OnModuleInit {
  readonly #logger = new Logger('SyncGuard');
  readonly #service: OnceService;
  readonly #host: HttpAdapterHost;
  readonly #routes: HttpRoutes;
  #isHooked = false;
  readonly #sayOnce = warningOnce((line) => this.#logger.error(line));
  #hasRoutes = false;

  constructor(service: OnceService, modules: ModulesContainer, moduleRef: ModuleRef, host: HttpAdapterHost) {
    this.#routes = new HttpRoutes(modules, moduleRef);
    this.#service = service;
    this.#host = host;
    // Here all modules are known, and Nest has not resolved a route yet.
    for (const { controllers, providers } of modules.values())
      for (const { metatype } of [...controllers.values(), ...providers.values()])
        if (typeof metatype === 'function') this.#bind(metatype);
    // Hooks of Fastify run in the order in which they were added, and those of the app may compress.
    if (host.httpAdapter) this.#hookFastify();
    else (host as Partial<HttpAdapterHost>).init$?.subscribe(() => this.#hookFastify());
  }

  onModuleInit(): void {
    this.#hookFastify();
    const { encode, keepMs } = this.#service.options;
    if (this.#hasRoutes && !encode)
      this.#logger.log(
        `ONCE_IN_CLEAR: Answers of routes with @Once() stay in the backend for \`keepMs\` (by default ${keepMs} ms), in clear. Set \`once.encode\` to encrypt them.`,
      );
  }

  /** @throws OnceError, or an OnceReplay in place of running the handler */
  async enter(context: ExecutionContext): Promise<boolean> {
    const plan = planOf(context.getHandler());
    if (!plan || context.getType() !== 'http') return true;
    const http = context.switchToHttp();
    const request = http.getRequest<HttpRequest>();
    const call = await this.#callOf(context, request, plan);
    if (!call) return true;
    const entered = await this.#service.enter(call);
    if ('status' in entered) {
      // eslint-disable-next-line @typescript-eslint/only-throw-error
      throw new OnceReplay(await this.#service.codec.answerOf(call.key, entered.kept));
    }
    // What is kept is the whole answer, and not that this client has it already.
    if (SAFE.includes(request.method)) for (const name of CONDITIONS) delete request.headers[name];
    const visit = new OnceVisit(this.#service, entered, call, plan);
    watchAnswer(request, http.getResponse<object>(), visit);
    return true;
  }

  /** Returns undefined for a call without a key that may pass. */
  async #callOf(
    context: ExecutionContext,
    request: HttpRequest,
    plan: OncePlan,
  ): Promise<OnceCall | undefined> {
    const route = this.#routes.nameOf(context.getClass(), context.getHandler(), request);
    const key = await this.#keyOf(context, request, plan, route);
    if (key === undefined) return undefined;
    const { payload } = plan.options;
    const asked = payload ? (payload as (request: unknown) => unknown)(request) : payloadOf(request, route);
    const options = this.#service.resolved(plan.call, plan.place);
    const signal = options.waitMs > 0 ? signalOf(context) : undefined;
    return this.#service.callOf(key, asked, options, signal);
  }

  async #keyOf(
    context: ExecutionContext,
    request: HttpRequest,
    { options, required }: OncePlan,
    route: string,
  ): Promise<string | undefined> {
    const { header, scope: usualScope } = this.#service.options;
    const { key, scope = usualScope } = options;
    const what = typeof key === 'string' ? `\`${key}\`` : 'key';
    if (key !== undefined) {
      const found = keyText(
        typeof key === 'string' ? valueAt(request, key) : (key as (request: unknown) => unknown)(request),
        what,
      );
      if (found !== undefined) return onceKey({ route, key: found });
    } else if (request.headers[header] !== undefined) {
      const sent = keyInHeader(request.headers[header], header);
      if (scope === 'public') return onceKey({ route, key: sent });
      return onceKey({ route, caller: await this.#caller(context, request), key: sent });
    }
    if (required) throw keyMissing(key === undefined ? `header ${header}` : what);
    return undefined;
  }

  async #caller(context: ExecutionContext, request: HttpRequest): Promise<OnceCaller> {
    const { user } = this.#service.options;
    const caller: unknown = user ? await user(context) : userIdOf(request.user);
    const parts = [caller].flat().map(idText);
    if (parts.length > 0 && parts.every((part) => part !== undefined)) return parts;
    this.#sayOnce(
      'ONCE_NO_CALLER: A call with a key has no caller, so nobody is known whose key it is. Authenticate it by a guard, set `once.user`, or write out `scope: "public"`.',
    );
    throw noCaller();
  }

  #bind({ prototype }: { prototype?: object }): void {
    if (!prototype) return;
    for (const name of (Reflect.getMetadata(ONCE_METHODS, prototype) ?? []) as string[]) {
      const method = (prototype as Record<string, unknown>)[name];
      const plan = typeof method === 'function' ? planOf(method) : undefined;
      if (!plan) continue;
      const isRoute =
        Reflect.hasMetadata(PATH, method as object) && Reflect.hasMetadata(METHOD, method as object);
      if (isRoute) checkRoute(prototype.constructor, name, method as object, plan);
      else if (plan.options.key === undefined)
        throw refused(
          plan,
          'ONCE_NO_KEY',
          'has no key, and it is no route, which could have it in a header.',
          'Give it a `key`.',
        );
      this.#hasRoutes ||= isRoute;
      bindLast(method as object);
    }
  }

  #hookFastify(): void {
    const adapter = this.#host.httpAdapter as HttpAdapterHost['httpAdapter'] | undefined;
    if (this.#isHooked || !this.#hasRoutes || adapter?.getType() !== 'fastify') return;
    this.#isHooked = true;
    adapter.getInstance<{ addHook(name: string, hook: unknown): void }>().addHook('onSend', onSend);
  }
}

function checkRoute(type: object, name: string, method: object, plan: OncePlan): void {
  if (Reflect.hasMetadata(SSE, method) || writesResponse(type, name))
    throw refused(
      plan,
      'ONCE_NO_ANSWER',
      'cannot keep its answer: the handler streams events, or writes the response itself.',
      'Return the answer, or use `@Res({ passthrough: true })`.',
    );
  if (plan.options.key === undefined && SAFE_METHODS.includes(Reflect.getMetadata(METHOD, method)))
    throw refused(
      plan,
      'ONCE_NO_KEY',
      'is a GET, which clients repeat without a key.',
      'Give it a `key`, or use POST.',
    );
}

const refused = (
  { place }: OncePlan,
  code: 'ONCE_NO_KEY' | 'ONCE_NO_ANSWER',
  what: string,
  hint: string,
): SyncGuardConfigError => new SyncGuardConfigError(`${place} ${what}`, { code, hint });

/** The parts of a request of Express or Fastify that are used here. */
interface HttpRequest extends RoutedRequest {
  readonly headers: Record<string, unknown>;
  readonly params?: unknown;
  readonly query?: unknown;
  readonly body?: unknown;
  readonly user?: unknown;
  /** What Nest has found in the host, where the controller's `host` has parameters. */
  readonly hosts?: unknown;
}

/** What the request asks for. A body that nobody has parsed cannot be compared. */
function payloadOf(request: HttpRequest, route: string): object {
  const { method, params, query, body, headers, hosts } = request;
  const { 'content-type': given = '' } = headers as { readonly 'content-type'?: string };
  const type = String(given);
  const hasBody = headers['transfer-encoding'] !== undefined || Number(headers['content-length'] ?? 0) > 0;
  const isEmpty =
    body === undefined || (typeof body === 'object' && body !== null && Object.keys(body).length === 0);
  const isParsed = !isEmpty || (/json|x-www-form-urlencoded/i.test(type) && body !== undefined);
  if (/^multipart\//i.test(type) || (hasBody && !isParsed))
    throw invalidCall(
      'The body of this request was not parsed, so it cannot be compared with that of another one.',
      'Give `@Once()` a `payload`, or parse the body before guards are asked.',
    );
  return { method, route, hosts, params, query, body: body ?? null };
}
