import {
  type Asked,
  type Ended,
  type EnteredQueue,
  type LeftQueue,
  QUEUE_KEYS,
  QUEUE_LOCK,
  type QueueHistory,
  type Trouble,
} from './queue-history.js';

export interface QueueReport {
  readonly violations: string[];
  readonly sections: number;
  readonly troubles: number;
  readonly worstFreeMs: number;
}

interface Section extends EnteredQueue {
  readonly heldMs: number;
  /** The server cannot have it any longer. */
  readonly overMs: number;
}

/** A second, in which somebody looks. */
const LOOK_MS = 1_000;
/** A claim that nobody takes. */
const PER_TROUBLE_MS = 500;

interface Time {
  readonly fromMs: number;
  readonly toMs: number;
}

/** Returns the same times without overlaps, in order. */
function union(times: readonly Time[]): readonly Time[] {
  const merged: { fromMs: number; toMs: number }[] = [];
  for (const { fromMs, toMs } of [...times].sort((a, b) => a.fromMs - b.fromMs)) {
    const last = merged.at(-1);
    if (last && fromMs <= last.toMs) last.toMs = Math.max(last.toMs, toMs);
    else merged.push({ fromMs, toMs });
  }
  return merged;
}

/** Returns how much of the times is between two moments. */
const within = (times: readonly Time[], fromMs: number, toMs: number): number =>
  times.reduce(
    (sum, each) => sum + Math.max(0, Math.min(each.toMs, toMs) - Math.max(each.fromMs, fromMs)),
    0,
  );

/** Mutual exclusion, fences, and: a free lock does not stay so while somebody waits, and nobody times out before their time. */
export function checkQueue(
  { events, troubles, held, failures }: QueueHistory,
  /** What a busy machine may add. */
  slackMs: number,
): QueueReport {
  const violations = [...failures];
  const of = <T extends QueueHistory['events'][number]['type']>(type: T) =>
    events.filter(
      (event): event is Extract<QueueHistory['events'][number], { type: T }> => event.type === type,
    );
  for (const { worker, detail } of of('unhandled')) violations.push(`Unhandled in ${worker}: ${detail}`);
  const nameOf = ({ worker, n }: { worker: number; n: number }): string => `${worker}:${n}`;
  const left = new Map(of('left').map((event): [string, LeftQueue] => [nameOf(event), event]));
  const ended = new Map(of('ended').map((event): [string, Ended] => [nameOf(event), event]));
  const entered = new Map(of('entered').map((event): [string, EnteredQueue] => [nameOf(event), event]));
  const struck = (fromMs: number, toMs: number, worker?: number): Trouble[] =>
    troubles.filter(
      (each) =>
        each.fromMs <= toMs &&
        each.toMs >= fromMs &&
        (worker === undefined || each.worker === undefined || each.worker === worker),
    );

  let worstFreeMs = 0;
  for (const key of QUEUE_KEYS) {
    const sections = of('entered')
      .filter((event) => event.key === key)
      .map((event): Section => {
        const end = left.get(nameOf(event));
        const heldMs = end?.heldMs ?? event.atMs;
        const isWell = end && struck(event.atMs - 50, end.atMs + 100, event.worker).length === 0;
        return { ...event, heldMs, overMs: isWell ? end.atMs : heldMs + QUEUE_LOCK.ttlMs };
      })
      .sort((a, b) => a.atMs - b.atMs);
    const waits = of('asked').filter((event) => event.key === key);
    const isWaiting = (call: Asked, fromMs: number, toMs: number): boolean =>
      call.atMs <= fromMs &&
      (entered.get(nameOf(call))?.atMs ?? ended.get(nameOf(call))?.atMs ?? -Infinity) >= toMs &&
      struck(fromMs - 2_000, toMs, call.worker).length === 0;

    // What a caller has said of its own lock, and what was seen on the server.
    const times = union([
      ...sections.map(({ atMs, overMs }) => ({ fromMs: atMs, toMs: overMs })),
      ...held.filter((each) => each.key === key),
    ]);
    let freeFromMs = -Infinity;
    let highest = '';
    for (const [i, section] of sections.entries()) {
      const before = sections[i - 1];
      if (before && section.atMs < before.heldMs)
        violations.push(`Two under ${key} for ${(before.heldMs - section.atMs).toFixed(1)} ms.`);
      if (section.fence <= highest)
        violations.push(`The fence of ${key} fell from ${highest} to ${section.fence}.`);
      highest = section.fence > highest ? section.fence : highest;
      const freeMs = section.atMs - freeFromMs - within(times, freeFromMs, section.atMs);
      if (freeMs > 200 && waits.some((call) => isWaiting(call, freeFromMs, section.atMs))) {
        worstFreeMs = Math.max(worstFreeMs, freeMs);
        // On a Cluster a process that was killed is found out when its turn comes.
        const inTrouble = new Set(
          troubles
            .filter(
              ({ fromMs, toMs, name }) =>
                fromMs <= section.atMs &&
                (toMs >= freeFromMs - 3_000 || (name === 'kill' && fromMs > freeFromMs - 60_000)),
            )
            .map(({ worker }) => worker),
        );
        const allowedMs = LOOK_MS + PER_TROUBLE_MS * inTrouble.size + slackMs;
        if (freeMs > allowedMs)
          violations.push(
            `${key} was free for ${Math.round(freeMs)} ms from ${Math.round(freeFromMs)} on while somebody waited; ${inTrouble.size} processes were not well.`,
          );
      }
      freeFromMs = Math.max(freeFromMs, section.overMs);
    }

    for (const call of waits) {
      const end = ended.get(nameOf(call));
      if (end?.end !== 'AcquisitionTimeout') continue;
      const heldMs = within(times, call.atMs, end.atMs);
      const during = struck(call.atMs - 3_000, end.atMs);
      // A caller that stands still itself cannot take what it is handed.
      const stoodMs = within(union(struck(call.atMs, end.atMs, call.worker)), call.atMs, end.atMs);
      const allowedMs = heldMs + LOOK_MS + PER_TROUBLE_MS * during.length + stoodMs + slackMs;
      if (QUEUE_LOCK.timeoutMs > allowedMs)
        violations.push(
          `A call for ${key} in ${call.worker} timed out at ${Math.round(end.atMs)}, though those before it held for ${Math.round(heldMs)} ms and ${during.length} processes were not well.`,
        );
    }
  }
  return { violations, sections: of('entered').length, troubles: troubles.length, worstFreeMs };
}
