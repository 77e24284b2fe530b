export function quantile(values, q) {
  if (values.length === 0) return NaN;
  const sorted = [...values].sort((a, b) => a - b);
  const at = (sorted.length - 1) * q;
  const low = Math.floor(at);
  return sorted[low] + (sorted[Math.min(low + 1, sorted.length - 1)] - sorted[low]) * (at - low);
}

export const median = (values) => quantile(values, 0.5);

/** The median over the rounds of one contestant's figure. */
export const typical = (rounds, name, pick) => median(rounds.map((round) => pick(round[name])));

/** The median over the rounds of one contestant's figure divided by the base's figure of the same round. */
export const ratio = (rounds, name, base, pick) =>
  median(rounds.map((round) => pick(round[name]) / pick(round[base])));

/** The least over the rounds: for time in the server, to which noise only adds. */
export const least = (rounds, name, pick) => Math.min(...rounds.map((round) => pick(round[name])));

export const nowUs = () => Number(process.hrtime.bigint()) / 1e3;

/** Runs `fn` until `n` calls are done, `flight` at a time. */
export async function inFlight(n, flight, fn) {
  let next = 0;
  const lane = async () => {
    while (next < n) await fn(next++);
  };
  await Promise.all(Array.from({ length: flight }, lane));
}
