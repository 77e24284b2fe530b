import { clientKeyPrefix, type RedisClient } from '../redis/redis.client.js';
import { hashTag, makeHashedKey, storageKey } from '../redis/redis.keys.js';
import { createLockId } from './lock.values.js';

export type LockKeys = Readonly<Record<'record' | 'index' | 'fenceCounter', string>>;

/** How the keys of a lock are named. */
export interface LockLayout {
  createLockId(key: string): string;
  keysOf(key: string, lockId: string): LockKeys;
  recordOf(key: string): string;
  indexOf(lockId: string): string;
  /** Where a release by the bare lockId leaves its mark: not among the names that other programs know. */
  markOf(lockId: string): string;
  /**
   * The record's key as it is declared to a script, out of the name that the index holds; undefined where a
   * script may read the record by that name itself.
   */
  recordFromIndex?(recordName: string): string;
}

// A user's key of this form would name an index or a fence counter: it is always hashed. Others are plain, or they
// would not exclude other programs of the wire format.
const INTERNAL = /^(id:[A-Za-z0-9_-]{22}$|fence:)/;

const recordKey = (prefix: string, key: string): string =>
  INTERNAL.test(key) ? makeHashedKey(prefix, key) : storageKey(prefix, key);

function keysUnder(prefix: string, key: string, lockId: string): LockKeys {
  const record = recordKey(prefix, key);
  return {
    record,
    index: storageKey(prefix, `id:${lockId}`),
    fenceCounter: storageKey(prefix, `fence:${record}`),
  };
}

/** The seed's names, a wire format that other programs share: for one server (standalone, Sentinel). */
export function specLayout(prefix: string): LockLayout {
  return {
    createLockId,
    keysOf: (key, lockId) => keysUnder(prefix, key, lockId),
    recordOf: (key) => recordKey(prefix, key),
    indexOf: (lockId) => storageKey(prefix, `id:${lockId}`),
    markOf: (lockId) => `${prefix}/released:${lockId}`,
  };
}

const TAG_LENGTH = 3;
const USER_TAG = /\{([^}]+)\}/;

/**
 * All keys of a lock in one Cluster slot: `prefix:{tag}:...`. The lockId starts with the tag, so that a bare
 * lockId finds its slot.
 */
export function slottedLayout(prefix: string, client: RedisClient): LockLayout {
  const clientPrefix = clientKeyPrefix(client);
  const tagOf = (key: string): string => hashTag(USER_TAG.exec(key)?.[1] ?? key, TAG_LENGTH);
  const prefixOf = (tag: string): string => `${prefix}:{${tag}}`;
  return {
    createLockId: (key) => tagOf(key) + createLockId().slice(TAG_LENGTH),
    keysOf: (key, lockId) => keysUnder(prefixOf(lockId.slice(0, TAG_LENGTH)), key, lockId),
    recordOf: (key) => recordKey(prefixOf(tagOf(key)), key),
    indexOf: (lockId) => storageKey(prefixOf(lockId.slice(0, TAG_LENGTH)), `id:${lockId}`),
    markOf: (lockId) => `${prefix}/{${lockId.slice(0, TAG_LENGTH)}}:released:${lockId}`,
    recordFromIndex: (name) => (name.startsWith(clientPrefix) ? name.slice(clientPrefix.length) : name),
  };
}
