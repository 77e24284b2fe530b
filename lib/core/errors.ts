const BRANDS = Symbol.for('syncguard:error-brands');
const OWED = Symbol.for('syncguard:owed');

/**
 * The codes of faults that every feature shares. Features add codes of their own.
 *
 * - `InvalidArgument`: an option or argument of the call is wrong. The message names it, its bound and what was given. It is a
 *   500 where an option of the app is wrong (`SyncGuardConfigError`), or where Redis said so (there is a `cause`): a key of ours
 *   holds what another program wrote, or the client is in subscriber mode. To do: correct the call; for a 500 the option, or
 *   choose another `keyPrefix`, or give SyncGuard a client of its own.
 * - `ServiceUnavailable`: Redis cannot be reached or takes no writes, or the app is shutting down. The call was not protected, so
 *   it did not run. To do: look at the hint and the `cause`. The client may retry after `Retry-After`.
 * - `NetworkTimeout`: Redis did not answer within `commandTimeoutMs`. Whether the command ran is not known; what was granted late
 *   is undone. To do: retry. A call with an id of its own is safe to repeat.
 * - `AuthFailed`: Redis refused user name or password, or its ACL forbids a command (which the message names) or a key. To do:
 *   correct the `redis` option or the ACL.
 * - `Aborted`: the `signal` of the call has aborted, or the app is shutting down. What was granted late is undone. To do: nothing,
 *   the caller wanted it.
 * - `Internal`: an error or a reply that SyncGuard does not know, a fence counter that has reached its end, or an unusable value
 *   from a function of a policy. To do: look at the hint; report what has none, with the `cause`.
 */
export type FaultCode =
  'ServiceUnavailable' | 'AuthFailed' | 'InvalidArgument' | 'NetworkTimeout' | 'Aborted' | 'Internal';

/** What a {@link SyncGuardError} is made of. */
export interface SyncGuardErrorInit<Code extends string = string> {
  /** Names the kind of fault, for programs. */
  code: Code;
  /** What happened. */
  message: string;
  /** What to do about it. It is appended to the message. */
  hint?: string | undefined;
  /** The error behind this one. */
  cause?: unknown;
  /** Facts for programs. Keys appear in it only as hashes. */
  context?: Readonly<Record<string, unknown>>;
  /** @internal See {@link withOwed}. */
  isOwed?: () => boolean;
}

/**
 * The base class of everything that SyncGuard throws. Switch on `code`, show `message`, log `cause`.
 *
 * `instanceof` compares brands and not prototypes. An app may load a CommonJS and an ES module copy of this
 * package, and the filter of one copy must catch the errors of the other.
 *
 * @example
 * catch (error) {
 *   if (error instanceof SyncGuardError && error.code === 'ServiceUnavailable') return cached;
 *   throw error;
 * }
 */
export class SyncGuardError<Code extends string = string> extends Error {
  /** Tells the errors of this class from others in all copies of the package. */
  static readonly brand: string = 'SyncGuardError';

  /** Names the kind of fault, for programs. */
  readonly code: Code;
  /** Facts for programs. Keys appear in it only as hashes. */
  readonly context: Readonly<Record<string, unknown>>;
  /** What happened, without the hint. It may be shown to the clients of an app. */
  readonly summary: string;
  /** What the operator of the app can do about it. */
  readonly hint: string | undefined;

  constructor(init: SyncGuardErrorInit<Code>) {
    const { code, message, hint, cause, context = {}, isOwed } = init; // The types of the package have no `isOwed`.
    super(hint ? `${message} ${hint}` : message, cause === undefined ? undefined : { cause });
    this.code = code;
    this.context = context;
    this.summary = message;
    this.hint = hint;
    if (isOwed) withOwed(this, isOwed);
    // Not `new.target`: terser loses it where it inlines a constructor.
    const brands = brandsOf(this.constructor as typeof SyncGuardError);
    Object.defineProperty(this, BRANDS, { value: brands });
    Object.defineProperty(this, 'name', { value: brands[0], configurable: true, writable: true });
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    // A user's own subclass has no brand, so the ordinary rule applies to it.
    if (!Object.hasOwn(this, 'brand')) return Function.prototype[Symbol.hasInstance].call(this, value);
    return hasBrand(value, this.brand);
  }
}

/**
 * Returns a fault of any kind as what the error of a feature is made of, with its code, hint and cause.
 *
 * @param operation - what failed, for an error that SyncGuard does not know: `'An operation of a counter'`
 */
export function faultOf<Code extends string>(
  error: unknown,
  operation: string,
): SyncGuardErrorInit<Code | 'Internal'> {
  if (error instanceof SyncGuardError) {
    const { code, summary: message, hint, cause, context } = error as SyncGuardError<Code>;
    return { code, message, hint, cause, context, isOwed: () => isOwed(error) };
  }
  const message = `${operation} failed with an error that SyncGuard does not know. It is the \`cause\`.`;
  return { code: 'Internal', message, cause: error };
}

/**
 * Marks a fault with a function that returns whether the reply to its command may still come. A retry before
 * then would send a second command to a server that has not answered the first.
 */
export const withOwed = <Fault extends object>(fault: Fault, isOwed: () => boolean): Fault =>
  Object.defineProperty(fault, OWED, { value: isOwed });

/** Returns whether the reply to the failed command may still come. */
export const isOwed = (fault: unknown): boolean =>
  (fault as { [OWED]?: () => boolean } | null | undefined)?.[OWED]?.() ?? false;

/** Returns whether a value is an error of the class with this brand, or of a class derived from it. */
export function hasBrand(value: unknown, brand: string): boolean {
  const brands = (value as { [BRANDS]?: readonly string[] } | null | undefined)?.[BRANDS];
  return Array.isArray(brands) && brands.includes(brand);
}

/** Makes an exception of Nest an error of ours as well: it has the facts of the error, and `instanceof` holds. */
export const brandedAs = <E extends Error>(exception: E, error: SyncGuardError): E =>
  Object.defineProperty(Object.assign(exception, error), BRANDS, {
    value: (error as { [BRANDS]?: readonly string[] })[BRANDS],
  });

/** Returns the brands of a class and of all its bases, the nearest first. */
function brandsOf(target: typeof SyncGuardError): string[] {
  const brands: string[] = [];
  for (let type = target; typeof type === 'function'; type = Object.getPrototypeOf(type) as typeof target)
    if (Object.hasOwn(type, 'brand')) brands.push(type.brand);
  return brands;
}

/**
 * The codes of faults in the set-up of an app. A malformed option has none of them. docs/errors.md says what to do
 * about each.
 */
export type BootCode =
  | 'KEY_PREFIX_NESTED'
  | 'MODULE_IMPORTED_TWICE'
  | 'DECORATOR_NOT_ON_METHOD'
  | 'DECORATOR_WITHOUT_SERVICE'
  | 'ONCE_NO_ANSWER'
  | 'ONCE_NO_KEY'
  | 'RATE_LIMIT_ASK'
  | 'RATE_LIMIT_GUARD_NOT_INJECTED'
  | 'RATE_LIMIT_LOST'
  | 'RATE_LIMIT_NAME'
  | 'RATE_LIMIT_NO_DEFAULT'
  | 'RATE_LIMIT_NO_KEY'
  | 'RATE_LIMIT_NO_ROUTE'
  | 'RATE_LIMIT_UNGUARDED_FIELD'
  | 'RATE_LIMIT_UNKNOWN_POLICY';

/** What a {@link SyncGuardConfigError} is made of. */
export interface SyncGuardConfigErrorInit extends Pick<SyncGuardErrorInit, 'hint' | 'cause' | 'context'> {
  /** Names the fault in the docs and in searches. The message begins with it. Default: `InvalidArgument`. */
  code?: BootCode;
}

/**
 * A fault in the set-up of an app, found at boot or at the first call. For a malformed option (code
 * `InvalidArgument`) the message names the option, its bound, the value and the type. Other faults have a
 * code of their own, in capitals, such as `RATE_LIMIT_LOST`.
 */
export class SyncGuardConfigError extends SyncGuardError<'InvalidArgument' | BootCode> {
  static override readonly brand: string = 'SyncGuardConfigError';

  constructor(message: string, { code, ...init }: SyncGuardConfigErrorInit = {}) {
    super({ code: code ?? 'InvalidArgument', message: code ? `${code}: ${message}` : message, ...init });
  }
}
