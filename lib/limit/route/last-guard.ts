import type { CanActivate, ExecutionContext } from '@nestjs/common';
import { GUARDS } from '../../transport/nest-metadata.js';
import { APPLIES_DEFAULT, OUR_GUARD } from './rate-limit.metadata.js';
import { visitOf } from './visit.js';

/**
 * The guard for the limits that are asked after all other guards. It is put on handlers at boot. All apps of a process
 * share the metadata of a method, so there is one instance, and it finds the app from the call.
 */
const LAST_GUARD: CanActivate = {
  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    const visit = visitOf(context);
    return visit ? visit.app.guardsPassed(visit) : true;
  },
};

export const hasLastGuard = (method: object): boolean => guardsOn(method).includes(LAST_GUARD);

/** Puts LAST_GUARD behind all guards of a method. It is never removed: another app or a subclass may need it. */
export function addLastGuard(method: object): void {
  const others = guardsOn(method).filter((guard) => guard !== LAST_GUARD);
  Reflect.defineMetadata(GUARDS, [...others, LAST_GUARD], method);
}

/**
 * Puts the guard of a method's `@RateLimit` before all guards of its class. Nest runs the guards of a class before those of
 * the method, so the limits of the method would be asked too late.
 */
export function moveRouteGuardFirst(type: object, method: object): void {
  const first = guardsOn(method).find(isRouteGuard);
  const ofClass = guardsOn(type);
  if (!first || ofClass.length === 0 || ofClass[0] === first) return;
  Reflect.defineMetadata(GUARDS, [first, ...ofClass.filter((guard) => guard !== first)], type);
}

const isRouteGuard = (guard: unknown): boolean =>
  typeof guard === 'function' && Reflect.getMetadata(OUR_GUARD, guard) === 'route';

export const isOtherGuard = (guard: unknown): boolean =>
  guard !== LAST_GUARD && !Reflect.hasMetadata(OUR_GUARD, classOf(guard));

/** Returns the class of a guard that was bound as a class or as an instance. */
export const classOf = (guard: unknown): object =>
  typeof guard === 'function' ? guard : (guard as object).constructor;

/** Returns whether a guard is RateLimitGuard or a subclass of it, even that of another copy of this package. */
export const appliesDefault = (guard: unknown): boolean =>
  Reflect.hasMetadata(APPLIES_DEFAULT, classOf(guard));

export const guardsOn = (place: object): readonly unknown[] =>
  (Reflect.getMetadata(GUARDS, place) ?? []) as unknown[];
