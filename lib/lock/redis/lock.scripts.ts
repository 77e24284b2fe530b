import { acquireFor, type AcquireArg, type AcquireReply } from './acquire.script.js';
import { extendFor, type ExtendArg } from './extend.script.js';
import { handOnScript, publishScript } from './hand-on.scripts.js';
import {
  cleanupScript,
  extendByIdScript,
  extendFoundScript,
  readByIdScript,
  readIndexScript,
  readScript,
  releaseByIdScript,
  releaseFoundScript,
} from './lock.by-id.scripts.js';
import type { KeyName } from './lock.fragments.js';
import type { ExtendReply } from './lock.replies.js';
import { releaseFor, type ReleaseArg, type ReleaseReply } from './release.script.js';
import type { Script } from '../../script/define-script.js';

export interface ScriptsOfLock {
  readonly acquire: Script<KeyName, AcquireArg, AcquireReply>;
  readonly release: Script<KeyName, ReleaseArg, ReleaseReply>;
  readonly extend: Script<KeyName, ExtendArg, ExtendReply>;
}

const byCount: ScriptsOfLock[] = [];

/** Returns the scripts for `count` keys. Each number of keys has its own command (law 6 of docs/scripts.md). */
export const scriptsFor = (count: number): ScriptsOfLock =>
  (byCount[count] ??= {
    acquire: acquireFor(count),
    release: releaseFor(count),
    extend: extendFor(count),
  });

export const lockScripts = [
  ...[1, 2].flatMap((count) => {
    const { acquire, release, extend } = scriptsFor(count);
    return [acquire, release, extend];
  }),
  handOnScript,
  publishScript,
  releaseFoundScript,
  releaseByIdScript,
  extendFoundScript,
  extendByIdScript,
  readScript,
  readByIdScript,
  readIndexScript,
  cleanupScript,
];
