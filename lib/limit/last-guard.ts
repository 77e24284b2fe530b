import type { CanActivate, ExecutionContext } from '@nestjs/common';
import { GUARDS, OUR_GUARD } from './rate-limit.metadata.js';
import { visitOf } from './visit.js';

/**
 * Put at boot after all other guards of a handler that has limits to be asked then. Metadata stands on functions which
 * several apps of a process may share, so there is one instance, and the call says whose it is.
 */
export const LAST_GUARD: CanActivate = {
  canActivate(context: ExecutionContext): Promise<boolean> | boolean {
    const visit = visitOf(context);
    return visit ? visit.steward.guardsPassed(context, visit) : true;
  },
};

export const isAskedLast = (method: object): boolean => guardsOn(method).includes(LAST_GUARD);

/** Never taken away again: a subclass, or another app, may have more limits on the same method. */
export function askLast(method: object): void {
  const others = guardsOn(method).filter((guard) => guard !== LAST_GUARD);
  Reflect.defineMetadata(GUARDS, [...others, LAST_GUARD], method);
}

/**
 * Guards of a class run before those of its methods, so that of a method's limits has to stand among them as well, and
 * first. Nest knows it by the method.
 */
export function askFirst(type: object, method: object): void {
  const first = guardsOn(method).find(isRouteGuard);
  const ofClass = guardsOn(type);
  if (!first || ofClass.length === 0 || ofClass[0] === first) return;
  Reflect.defineMetadata(GUARDS, [first, ...ofClass.filter((guard) => guard !== first)], type);
}

const isRouteGuard = (guard: unknown): boolean =>
  typeof guard === 'function' && Reflect.getMetadata(OUR_GUARD, guard) === 'route';

/** Whether guards other than ours stand on a class or method. */
export const hasOtherGuards = (place: object): boolean => guardsOn(place).some(isOther);

export const isOther = (guard: unknown): boolean =>
  guard !== LAST_GUARD &&
  !Reflect.hasMetadata(OUR_GUARD, typeof guard === 'function' ? guard : constructorOf(guard));

const constructorOf = (guard: unknown): object => (guard as object).constructor;

const guardsOn = (place: object): readonly unknown[] =>
  (Reflect.getMetadata(GUARDS, place) ?? []) as unknown[];
