import { acquireFor } from './acquire.script.js';
import { extendFor } from './extend.script.js';
import { handOnScript, publishScript } from './hand-on.scripts.js';
import {
  cleanupScript,
  extendByIdScript,
  readIndexScript,
  readScript,
  releaseByIdScript,
} from './lock.by-id.scripts.js';
import { releaseFor } from './release.script.js';

const scriptsOf = (count: number) => ({
  acquire: acquireFor(count),
  release: releaseFor(count),
  extend: extendFor(count),
});

const byCount: ReturnType<typeof scriptsOf>[] = [];

/** Returns the scripts for `count` keys. Each number of keys has its own command (law 6 of docs/scripts.md). */
export const scriptsFor = (count: number): (typeof byCount)[number] => (byCount[count] ??= scriptsOf(count));

export const lockScripts = [
  ...[1, 2].flatMap((count) => Object.values(scriptsFor(count))),
  handOnScript,
  publishScript,
  releaseByIdScript,
  extendByIdScript,
  readScript,
  readIndexScript,
  cleanupScript,
];
