const BRANDS = Symbol.for('syncguard:error-brands');

/** Faults that every feature knows. Features add their own codes. */
export type FaultCode =
  'ServiceUnavailable' | 'AuthFailed' | 'InvalidArgument' | 'NetworkTimeout' | 'Aborted' | 'Internal';

export interface SyncGuardErrorInit<Code extends string = string> {
  code: Code;
  /** What happened, in words. */
  message: string;
  /** What to do about it; appended to the message. */
  hint?: string | undefined;
  cause?: unknown;
  /** Facts for programs. Keys appear hashed only. */
  context?: Readonly<Record<string, unknown>>;
}

/**
 * The base of everything that SyncGuard throws. Switch on `code`, show `message`, log `cause`.
 *
 * `instanceof` goes by brand, not by prototype: an app may hold a CommonJS and an ES module copy of this
 * package, and the errors of one must be caught by the filter of the other.
 *
 * @example
 * catch (error) {
 *   if (error instanceof SyncGuardError && error.code === 'ServiceUnavailable') return cached;
 *   throw error;
 * }
 */
export class SyncGuardError<Code extends string = string> extends Error {
  static readonly brand: string = 'SyncGuardError';

  readonly code: Code;
  readonly context: Readonly<Record<string, unknown>>;
  /** What happened, without the hint: fit for the clients of an app. */
  readonly summary: string;
  /** What whoever runs the app can do about it. */
  readonly hint: string | undefined;

  constructor({ code, message, hint, cause, context = {} }: SyncGuardErrorInit<Code>) {
    super(hint ? `${message} ${hint}` : message, cause === undefined ? undefined : { cause });
    this.code = code;
    this.context = context;
    this.summary = message;
    this.hint = hint;
    const brands = brandsOf(new.target);
    Object.defineProperty(this, BRANDS, { value: brands });
    Object.defineProperty(this, 'name', { value: brands[0], configurable: true, writable: true });
  }

  static override [Symbol.hasInstance](value: unknown): boolean {
    // A user's own subclass has no brand of its own: there the ordinary rule holds.
    if (!Object.hasOwn(this, 'brand')) return Function.prototype[Symbol.hasInstance].call(this, value);
    const brands = (value as { [BRANDS]?: readonly string[] } | null | undefined)?.[BRANDS];
    return Array.isArray(brands) && brands.includes(this.brand);
  }
}

/** The brands of a class and of all its bases, the nearest first. */
function brandsOf(target: typeof SyncGuardError): string[] {
  const brands: string[] = [];
  for (let type = target; typeof type === 'function'; type = Object.getPrototypeOf(type) as typeof target)
    if (Object.hasOwn(type, 'brand')) brands.push(type.brand);
  return brands;
}

export interface SyncGuardConfigErrorInit {
  /** Names the fault in the docs and in searches; the message begins with it. Default: `InvalidArgument`. */
  code?: string;
  hint?: string;
  cause?: unknown;
  context?: Record<string, unknown>;
}

/**
 * A fault of the app's set-up, found at boot. Of a malformed option (code `InvalidArgument`) the message names option,
 * bound, value and type. Other faults have a code of their own, in capitals: `RATE_LIMIT_LOST`.
 */
export class SyncGuardConfigError extends SyncGuardError {
  static override readonly brand: string = 'SyncGuardConfigError';

  constructor(message: string, { code, ...init }: SyncGuardConfigErrorInit = {}) {
    super({ code: code ?? 'InvalidArgument', message: code ? `${code}: ${message}` : message, ...init });
  }
}
