import { execFileSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

export const CLOCK_SHIM_SOURCE = join(__dirname, 'clock-shim.c');

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
    writeFileSync(file, Buffer.alloc(8));
    return new ServerClock(file);
  }

  get offsetMs(): number {
    return Number(readFileSync(this.file).readBigInt64LE()) / 1000;
  }

  now(): number {
    return Date.now() + this.offsetMs;
  }

  /** Negative steps back. */
  advance(ms: number): void {
    this.write(this.offsetMs + ms);
  }

  /** Puts the clock on an instant. */
  set(epochMs: number): void {
    this.write(epochMs - Date.now());
  }

  /** Back to real time. */
  reset(): void {
    this.write(0);
  }

  private write(offsetMs: number): void {
    const bytes = Buffer.alloc(8);
    bytes.writeBigInt64LE(BigInt(Math.round(offsetMs * 1000)));
    writeFileSync(this.file, bytes, { flag: 'r+' }); // in place: a server has the file mapped
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
