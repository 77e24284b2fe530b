const codeOf = (message: string): string | undefined => message.split(':', 1)[0];

/** Returns a function that passes on the first message of each code, or the first of those that `by` takes for the same. */
export function warningOnce(
  warn: (message: string) => void,
  by: (message: string) => string | undefined = codeOf,
): (message: string) => undefined {
  const said = new Set<string | undefined>();
  return (message) => {
    const which = by(message);
    if (said.has(which)) return;
    said.add(which);
    warn(message);
  };
}
