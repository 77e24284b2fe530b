import { clientKeyPrefix, type RedisClient } from '../../redis/redis.client.js';
import { hashTag, makeHashedKey, storageKey } from '../../redis/redis.keys.js';
import { LockError } from '../lock.errors.js';
import { createLockId } from '../lock.record.js';

/** The Redis keys of a lock. For the second and later keys of a grant the names have a number: `fenceCounter:2`, `record:2`. */
export type LockKeys = Readonly<Record<'fenceCounter' | 'record' | 'queue' | 'index', string>>;

export const numbered = (name: string, i: number): string => (i === 0 ? name : `${name}:${i + 1}`);

/** Builds the names of the Redis keys of a lock. */
export interface LockLayout {
  /**
   * Returns a new lock id for these keys.
   *
   * @throws LockError InvalidArgument for several keys that cannot be locked together
   */
  createLockId(keys: readonly string[]): string;
  keysOf(keys: readonly string[], lockId: string): LockKeys;
  recordOf(key: string): string;
  indexOf(lockId: string): string;
  /** The key under which a release by lockId leaves its nonce. Other programs of the wire format do not use this name. */
  markOf(lockId: string): string;
  /**
   * Turns the name of a record that the index holds into the key that a script declares. Undefined if a script may
   * read the record by that name itself.
   */
  recordFromIndex?(recordName: string): string;
  /** The beginning of the name of the channel on which the waiters of a process learn of their turn. */
  readonly channel: string;
}

const channelOf = (prefix: string): string => `${prefix}/wake:`;

// A user's key of this form would name an index or a fence counter, so it is always hashed. Other keys stay as they are,
// because other programs of the wire format must find them.
const INTERNAL = /^(id:[A-Za-z0-9_-]{22}$|fence:)/;

const recordKey = (prefix: string, key: string): string =>
  INTERNAL.test(key) ? makeHashedKey(prefix, key) : storageKey(prefix, key);

/** @param ours - the beginning of the names that only SyncGuard uses */
function keysUnder(prefix: string, ours: string, keys: readonly string[], lockId: string): LockKeys {
  const index = storageKey(prefix, `id:${lockId}`);
  const names = Object.assign(namesOf(prefix, ours, keys[0] as string), { index });
  if (keys.length > 1) addNames(names, prefix, ours, keys);
  return names;
}

function addNames(
  names: Record<string, string>,
  prefix: string,
  ours: string,
  keys: readonly string[],
): void {
  for (let i = 1; i < keys.length; i++)
    for (const [name, value] of Object.entries(namesOf(prefix, ours, keys[i] as string)))
      names[numbered(name, i)] = value;
}

function namesOf(prefix: string, ours: string, key: string): Omit<LockKeys, 'index'> {
  const record = recordKey(prefix, key);
  return {
    record,
    fenceCounter: storageKey(prefix, `fence:${record}`),
    queue: storageKey(`${ours}queue`, key),
  };
}

/** Builds the names of docs/wire-format.md, which other programs share. For one server (standalone or Sentinel). */
export function specLayout(prefix: string): LockLayout {
  return {
    createLockId,
    keysOf: (keys, lockId) => keysUnder(prefix, `${prefix}/`, keys, lockId),
    recordOf: (key) => recordKey(prefix, key),
    indexOf: (lockId) => storageKey(prefix, `id:${lockId}`),
    markOf: (lockId) => `${prefix}/released:${lockId}`,
    channel: channelOf(prefix),
  };
}

const TAG_LENGTH = 3;
const USER_TAG = /\{([^}]+)\}/;

/**
 * Builds names that put all keys of a lock into one slot of a Cluster: `prefix:{tag}:...`. The lockId starts with the
 * tag, so that the lockId alone leads to the slot.
 */
export function slottedLayout(prefix: string, client: RedisClient): LockLayout {
  const clientPrefix = clientKeyPrefix(client);
  const tagOf = (key: string): string => hashTag(USER_TAG.exec(key)?.[1] ?? key, TAG_LENGTH);
  const prefixOf = (tag: string): string => `${prefix}:{${tag}}`;
  return {
    createLockId: (keys) => {
      if (keys.length > 1) expectOneTag(keys);
      return tagOf(keys[0] as string) + createLockId().slice(TAG_LENGTH);
    },
    keysOf: (keys, lockId) => {
      const tag = lockId.slice(0, TAG_LENGTH);
      return keysUnder(prefixOf(tag), `${prefix}/{${tag}}:`, keys, lockId);
    },
    recordOf: (key) => recordKey(prefixOf(tagOf(key)), key),
    indexOf: (lockId) => storageKey(prefixOf(lockId.slice(0, TAG_LENGTH)), `id:${lockId}`),
    markOf: (lockId) => `${prefix}/{${lockId.slice(0, TAG_LENGTH)}}:released:${lockId}`,
    channel: channelOf(prefix),
    recordFromIndex: (name) => (name.startsWith(clientPrefix) ? name.slice(clientPrefix.length) : name),
  };
}

/** Refuses keys of several slots: one script decides on all keys of a call, and a Cluster runs a script within one slot. */
function expectOneTag(keys: readonly string[]): void {
  const tags = new Set(keys.map((key) => USER_TAG.exec(key)?.[1]));
  if (tags.size === 1 && !tags.has(undefined)) return;
  throw new LockError({
    code: 'InvalidArgument',
    message: 'Keys that are locked together must share a {tag} in the slotted layout, which Clusters need.',
    hint: "Put the same text in braces into each of them: ['{user:7}:cart', '{user:7}:wallet'].",
  });
}
