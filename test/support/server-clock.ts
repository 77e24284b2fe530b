import { execFileSync } from 'node:child_process';
import { closeSync, openSync, readFileSync, writeFileSync, writeSync } from 'node:fs';
import { join } from 'node:path';

export const CLOCK_SHIM_SOURCE = join(__dirname, 'clock-shim.c');

/** Where in the file the two numbers are. */
const OFFSET = 0;
const HELD = 8;

/**
 * The time of day of one redis-server, which a test moves forward and back. It goes on ticking from wherever it is
 * put. The offset lives in a file alone, so that any process may move the clock of any server.
 *
 * Replication, Sentinel and `CLIENT PAUSE` measure by the same clock: a jump looks like a silence to them.
 */
export class ServerClock {
  /** The clock whose offset this file holds. */
  constructor(readonly file: string) {}

  static create(file: string): ServerClock {
    writeFileSync(file, Buffer.alloc(16));
    return new ServerClock(file);
  }

  get offsetMs(): number {
    return this.read(OFFSET) / 1000;
  }

  now(): number {
    return this.heldMs || Date.now() + this.offsetMs;
  }

  /** Negative steps back. */
  advance(ms: number): void {
    if (this.heldMs) this.write(HELD, this.heldMs + ms);
    else this.write(OFFSET, this.offsetMs + ms);
  }

  /** Puts the clock on an instant. */
  set(epochMs: number): void {
    this.write(OFFSET, epochMs - Date.now());
  }

  /** The clock stands still at an instant, until `reset()`: then a test knows the time to the millisecond. */
  hold(epochMs: number = Math.floor(this.now())): void {
    this.write(HELD, epochMs);
  }

  /** Back to real time. */
  reset(): void {
    this.write(OFFSET, 0);
    this.write(HELD, 0);
  }

  private get heldMs(): number {
    return this.read(HELD) / 1000;
  }

  private read(position: number): number {
    return Number(readFileSync(this.file).readBigInt64LE(position));
  }

  private write(position: number, ms: number): void {
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(BigInt(Math.round(ms * 1000)));
    const file = openSync(this.file, 'r+'); // in place: a server has the file mapped
    writeSync(file, bytes, 0, bytes.length, position);
    closeSync(file);
  }
}

/** Compiles the shim once per run; every process that this one starts later finds it. */
export function compileClockShim(folder: string): void {
  const shim = join(folder, 'clock-shim.so');
  execFileSync('gcc', ['-shared', '-fPIC', '-O2', '-Wall', '-Werror', '-o', shim, CLOCK_SHIM_SOURCE]);
  process.env.SYNCGUARD_CLOCK_SHIM = shim;
}

/** What a server needs in its environment to follow a clock. */
export function clockEnvironment(clock: ServerClock): NodeJS.ProcessEnv {
  const shim = process.env.SYNCGUARD_CLOCK_SHIM;
  if (!shim) throw new Error('No clock shim: call compileClockShim() first, as global-setup.ts does.');
  return { LD_PRELOAD: shim, SYNCGUARD_CLOCK_FILE: clock.file };
}

/** Holds a clock. Returns it as one that stands still but for what a test does. */
export function heldClock(clock: ServerClock) {
  clock.hold();
  return {
    now: (): number => clock.now(),
    set: (epochMs: number): void => clock.hold(epochMs),
    advance: (ms: number): void => clock.advance(ms),
  };
}
