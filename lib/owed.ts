const OWED = Symbol.for('syncguard:owed');

/**
 * Attaches to a fault whether the reply to its command is still to come. Whoever tries again before then sends a
 * second command to a server that has not answered the first.
 */
export function withOwed<Fault extends object>(fault: Fault, isOwed: () => boolean): Fault {
  return Object.defineProperty(fault, OWED, { value: isOwed });
}

/** Hands it on to the error that a feature makes of a fault. */
export function passOwed<Fault extends object>(from: unknown, to: Fault): Fault {
  const owed = (from as { [OWED]?: () => boolean } | null | undefined)?.[OWED];
  return owed ? withOwed(to, owed) : to;
}

/** Whether the server still owes the reply to the command that failed so. */
export const isOwed = (fault: unknown): boolean =>
  (fault as { [OWED]?: () => boolean } | null | undefined)?.[OWED]?.() ?? false;
