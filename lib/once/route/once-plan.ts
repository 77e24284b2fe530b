import type { OnceDecoratorOptions } from '../once.types.js';

/** Metadata of a method: its {@link OncePlan}. */
export const ONCE_PLAN = Symbol.for('syncguard:once-plan');
/** Metadata of a prototype: the names of its methods with `@Once()`. */
export const ONCE_METHODS = Symbol.for('syncguard:once-methods');
/** The token of OnceRoutes. Nest shows its description if SyncGuardModule is missing. */
export const ONCE_ROUTES = Symbol.for('syncguard:OnceRoutes (is SyncGuardModule.forRoot() imported?)');

/** What a decorator says of its method. There is one for each decorator, so it also names the method. */
export interface OncePlan {
  readonly place: string;
  readonly options: OnceDecoratorOptions;
  /** The options without those that are for the decorator alone. */
  readonly call: object;
  readonly required: boolean;
  /** The headers that are kept, in lower case. */
  readonly headers: ReadonlySet<string>;
}

export const planOf = (method: object): OncePlan | undefined =>
  Reflect.getMetadata(ONCE_PLAN, method) as OncePlan | undefined;
