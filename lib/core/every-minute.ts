const EVERY_MS = 60_000;

/**
 * Returns a function that writes a line for the log at once, and then one a minute at most, which says how many were left
 * out. For what any caller can cause, or every call of an outage.
 */
export function everyMinute<Rest extends unknown[]>(
  write: (line: string, ...rest: Rest) => void,
): (line: string, ...rest: Rest) => void {
  let nextMs = -Infinity;
  let leftOut = 0;
  return (line, ...rest) => {
    const nowMs = performance.now();
    if (nowMs < nextMs) return void leftOut++;
    write(leftOut > 0 ? `${line} (${leftOut} more since the last line)` : line, ...rest);
    nextMs = nowMs + EVERY_MS;
    leftOut = 0;
  };
}
