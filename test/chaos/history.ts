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
    | 'increment';
  /** What it is about: a lock's key, a budget's root, a secret, a limited key, a counter. */
  readonly on: string;
  /** Names what is done once although it is asked for again: a hold, a view, an increment. */
  readonly id?: string;
  readonly amount?: number;
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
  Invocation | Completion | Entered | Left | Audit | WorkerEvent | FaultEvent | Leftover;

/** What came of the run's files, in no order. A last line that a killed worker did not finish is left out. */
export function readHistory(files: readonly string[]): HistoryEvent[] {
  return files.flatMap((file) => {
    const lines = readFileSync(file, 'utf8').split('\n');
    return lines.slice(0, -1).map((line) => JSON.parse(line) as HistoryEvent);
  });
}
