import type {
  Audit,
  Began,
  Completion,
  Entered,
  FaultEvent,
  HistoryEvent,
  Invocation,
  Left,
  Leftover,
  Loss,
  WorkerEvent,
} from '../history.js';

/** A call and its end; without one it may have happened or not. */
export interface Operation {
  readonly call: Invocation;
  readonly done?: Completion;
}

interface Span {
  readonly fromMs: number;
  readonly toMs: number;
}

/** Time under a lock, as far as its holder was told. */
export interface Section extends Entered {
  /** When its caller asked for it. */
  readonly askedMs: number;
  readonly heldUntilMs: number;
}

/** A body of a call that is answered once, as far as is known. */
export interface OnceBody extends Began {
  readonly heldUntilMs: number;
  /** When it ended with an error. */
  readonly failedMs: number | undefined;
  /** The backend has said that its result is kept. */
  readonly isKept: boolean;
}

const nameOf = ({ worker, n }: { worker: number; n: number }): string => `${worker}:${n}`;

/** A history, ordered by what one asks of it. */
export class Facts {
  readonly operations: Operation[];
  readonly sections: Section[];
  readonly bodies: OnceBody[];
  readonly audits: Map<string, Audit>;
  readonly faults: FaultEvent[];
  readonly leftovers: Leftover[];
  readonly unhandled: WorkerEvent[];
  readonly killed: ReadonlySet<number>;
  readonly #stalls: ReadonlyMap<number, Span[]>;
  readonly #lossy: FaultEvent[];

  constructor(history: readonly HistoryEvent[]) {
    const of = <T extends HistoryEvent['type']>(type: T): Extract<HistoryEvent, { type: T }>[] =>
      history.filter((event): event is Extract<HistoryEvent, { type: T }> => event.type === type);
    const done = new Map(of('done').map((event): [string, Completion] => [nameOf(event), event]));
    const left = new Map(of('left').map((event): [string, Left] => [nameOf(event), event]));
    const asked = new Map(of('call').map((event): [string, number] => [nameOf(event), event.atMs]));
    this.operations = of('call').map((call) => ({ call, done: done.get(nameOf(call)) }));
    this.operations.sort((a, b) => a.call.atMs - b.call.atMs);
    this.sections = of('entered')
      .map((event) => ({
        ...event,
        askedMs: asked.get(nameOf(event)) ?? event.atMs,
        heldUntilMs: left.get(nameOf(event))?.heldUntilMs ?? event.atMs,
      }))
      .sort((a, b) => a.atMs - b.atMs);
    const effects = new Map(of('effect').map((event) => [nameOf(event), event]));
    const over = new Map(of('over').map((event) => [nameOf(event), event]));
    const kept = new Set(of('completed').map(({ on, fence }) => `${on} ${fence}`));
    this.bodies = of('began').map((event) => {
      const end = over.get(nameOf(event));
      return {
        ...event,
        heldUntilMs: end?.heldUntilMs ?? effects.get(nameOf(event))?.atMs ?? event.atMs,
        failedMs: end?.failed ? end.atMs : undefined,
        isKept: kept.has(`${event.on} ${event.fence}`),
      };
    });
    this.audits = new Map(of('audit').map((audit) => [audit.on, audit]));
    this.faults = of('fault');
    this.leftovers = of('leftover');
    const workerEvents = history.filter((event): event is WorkerEvent =>
      ['unhandled', 'late', 'ended'].includes(event.type),
    );
    this.unhandled = workerEvents.filter(({ type }) => type === 'unhandled');
    this.killed = new Set(
      this.faults
        .filter(({ name }) => name.startsWith('a worker is killed'))
        .map(({ worker }) => worker as number),
    );
    this.#stalls = stallsOf(workerEvents.filter(({ type }) => type === 'late'));
    this.#lossy = this.faults.filter(({ loses }) => loses !== 'nothing');
  }

  /** Whether something that loses what was acknowledged, or just that, happened then. */
  isExcused(fromMs: number, toMs: number, loss?: Loss): boolean {
    return this.#lossy.some(
      (fault) => fault.fromMs <= toMs && fault.toMs >= fromMs && (!loss || fault.loses === loss),
    );
  }

  /** How long a worker stood still in a span of time. */
  stalledMs(worker: number, fromMs: number, toMs: number): number {
    let ms = 0;
    for (const stall of this.#stalls.get(worker) ?? [])
      ms += Math.max(0, Math.min(toMs, stall.toMs) - Math.max(fromMs, stall.fromMs));
    return ms;
  }
}

function stallsOf(late: readonly WorkerEvent[]): Map<number, Span[]> {
  const stalls = new Map<number, Span[]>();
  for (const { worker, sinceMs = 0, atMs } of late)
    stalls.set(worker, [...(stalls.get(worker) ?? []), { fromMs: sinceMs, toMs: atMs }]);
  return stalls;
}

export function groupBy<T>(items: readonly T[], keyOf: (item: T) => string): Map<string, T[]> {
  const groups = new Map<string, T[]>();
  for (const item of items) {
    const group = groups.get(keyOf(item));
    if (group) group.push(item);
    else groups.set(keyOf(item), [item]);
  }
  return groups;
}

/** What the check of one promise came to. */
export interface Finding {
  readonly violations: string[];
  /** What would be one, had no fault made it possible that is known to. */
  readonly excused: string[];
}
