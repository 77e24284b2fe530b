import { readFileSync } from 'node:fs';

/** Milliseconds on a clock that all processes of a machine share, and that nobody steps. */
export const nowMs = (): number => Number(process.hrtime.bigint()) / 1e6;

/** Which worker: a new one in the place of a dead one has a number of its own. */
export type WorkerId = number;

export interface Invocation {
  readonly type: 'call';
  readonly worker: WorkerId;
  /** Names the call within its worker. */
  readonly n: number;
  readonly op:
    | 'lock'
    | 'hold'
    | 'release'
    | 'reserve'
    | 'finalize'
    | 'abort'
    | 'create'
    | 'view'
    | 'check'
    | 'increment'
    | 'once';
  /** What it is about: a lock's key, a budget's root, a secret, a limited key, a counter. */
  readonly on: string;
  /** Names what is done once although it is asked for again: a hold, a view, an increment. */
  readonly id?: string;
  readonly amount?: number;
  /** What a call that is answered once is compared by. */
  readonly payload?: string;
  readonly atMs: number;
}

/** Its end: what it gave, or the code of its error. */
export interface Completion {
  readonly type: 'done';
  readonly worker: WorkerId;
  readonly n: number;
  readonly atMs: number;
  /** Whether it did what was asked: granted, counted, shown. */
  readonly ok?: boolean;
  readonly error?: string;
  /** Of a call that is answered once. */
  readonly answer?: Answer;
}

/** What a call that is answered once was told. */
export interface Answer {
  readonly value: string;
  readonly attempt: number;
  readonly replayed: boolean;
  readonly completedAtMs: number;
}

/** A body began under a lock. */
export interface Entered {
  readonly type: 'entered';
  readonly worker: WorkerId;
  readonly n: number;
  readonly on: string;
  readonly fence: string;
  readonly lockId: string;
  readonly atMs: number;
}

/** It ended, or knows that the lock is lost. */
export interface Left {
  readonly type: 'left';
  readonly worker: WorkerId;
  readonly n: number;
  /** When `assertHeld()` passed for the last time. */
  readonly heldUntilMs: number;
}

/** The body of a call that is answered once began. */
export interface Began {
  readonly type: 'began';
  readonly worker: WorkerId;
  readonly n: number;
  readonly on: string;
  readonly payload: string;
  /** What it returns, if it returns. No other body returns that. */
  readonly value: string;
  readonly attempt: number;
  readonly fence: string;
  /** When the claim was sent by which it runs. */
  readonly claimedMs: number;
  /** Its lease had lapsed by then. */
  readonly isLate: boolean;
  readonly atMs: number;
}

/** It had its effect. */
export interface Effect {
  readonly type: 'effect';
  readonly worker: WorkerId;
  readonly n: number;
  /** A moment before, at which its signal had not aborted. */
  readonly atMs: number;
}

/** It ended. */
export interface Over {
  readonly type: 'over';
  readonly worker: WorkerId;
  readonly n: number;
  /** When its signal had not aborted for the last time. */
  readonly heldUntilMs: number;
  readonly failed: boolean;
  readonly atMs: number;
}

/** Its result was kept, as the backend says. */
export interface Completed {
  readonly type: 'completed';
  readonly worker: WorkerId;
  readonly on: string;
  readonly fence: string;
  readonly atMs: number;
}

/** What a whole feature says of something after everybody has left it alone. */
export interface Audit {
  readonly type: 'audit';
  readonly op: 'budget' | 'secret' | 'counter';
  readonly on: string;
  /** Committed, views used, counted. */
  readonly used: number;
  readonly reserved?: number;
  readonly problems?: readonly string[];
  readonly atMs: number;
}

export interface WorkerEvent {
  readonly type: 'unhandled' | 'late' | 'ended';
  readonly worker: WorkerId;
  readonly atMs: number;
  /** Of `late`: since when the worker's event loop did not turn. */
  readonly sinceMs?: number;
  readonly detail?: string;
}

/**
 * What a fault may undo of what was acknowledged: nothing, all (a server comes back empty), the latest (a replica takes
 * over that had not got it yet), any key without those that belong to it (eviction), or the time that was left.
 */
export type Loss = 'nothing' | 'all' | 'the latest' | 'any key' | 'time';

/** Something that the driver broke. */
export interface FaultEvent {
  readonly type: 'fault';
  readonly name: string;
  readonly loses: Loss;
  /** The worker that it struck, if it was one. */
  readonly worker?: WorkerId;
  readonly fromMs: number;
  readonly toMs: number;
}

/** Of an entry of the index of locks. */
export const NAMES_NO_LOCK = 'names no lock';

/** A key that was there after all had ended. */
export interface Leftover {
  readonly type: 'leftover';
  readonly key: string;
  readonly problem: string;
  /** The key that the lock's user gave. */
  readonly lock?: string;
}

export type HistoryEvent =
  | Invocation
  | Completion
  | Entered
  | Left
  | Began
  | Effect
  | Over
  | Completed
  | Audit
  | WorkerEvent
  | FaultEvent
  | Leftover;

/** What came of the run's files, in no order. A last line that a killed worker did not finish is left out. */
export function readHistory(files: readonly string[]): HistoryEvent[] {
  return files.flatMap((file) => {
    const lines = readFileSync(file, 'utf8').split('\n');
    return lines.slice(0, -1).map((line) => JSON.parse(line) as HistoryEvent);
  });
}
