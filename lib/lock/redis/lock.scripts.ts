import { acquireKeysFor } from './acquire-keys.script.js';
import { acquireScript } from './acquire.script.js';
import { extendFor } from './extend.script.js';
import { publishScript } from '../../script/publish.script.js';
import { handOnScript } from './hand-on.scripts.js';
import {
  cleanupScript,
  extendByIdScript,
  queueScript,
  readIndexScript,
  readScript,
  releaseByIdScript,
} from './lock.by-id.scripts.js';
import { releaseFor, releaseSeenFor } from './release.script.js';

export const lockScripts = [
  acquireScript,
  acquireKeysFor(2),
  ...[1, 2].flatMap((count) => [releaseFor(count), releaseSeenFor(count), extendFor(count)]),
  handOnScript,
  publishScript,
  releaseByIdScript,
  extendByIdScript,
  readScript,
  readIndexScript,
  queueScript,
  cleanupScript,
];
