const OWED = Symbol.for('syncguard:owed');

/**
 * Marks a fault with a function that returns whether the reply to its command may still come. A retry before
 * then would send a second command to a server that has not answered the first.
 */
export function withOwed<Fault extends object>(fault: Fault, isOwed: () => boolean): Fault {
  return Object.defineProperty(fault, OWED, { value: isOwed });
}

/** Copies the mark to the error that a feature makes of a fault. */
export function passOwed<Fault extends object>(from: unknown, to: Fault): Fault {
  const owed = (from as { [OWED]?: () => boolean } | null | undefined)?.[OWED];
  return owed ? withOwed(to, owed) : to;
}

/** Returns whether the reply to the failed command may still come. */
export const isOwed = (fault: unknown): boolean =>
  (fault as { [OWED]?: () => boolean } | null | undefined)?.[OWED]?.() ?? false;
