import { clientKeyPrefix, type RedisClient } from '../../redis/redis.client.js';
import {
  EFFECTIVE_KEY_BUDGET_BYTES,
  hashTag,
  makeHashedKey,
  RESERVE_BYTES,
  storageKey,
} from '../../redis/redis.keys.js';
import { escapeGlob } from '../../script/walk.js';
import { invalidCall } from '../lock.errors.js';
import { randomId } from '../../core/random-id.js';

/** Of every lockId. The name under which a call waits begins with its lockId. */
export const LOCK_ID_LENGTH = 22;

/** What the Redis keys of a lock are for. */
export type KeyName = 'fenceCounter' | 'record' | 'queue' | 'index';
export type LockKeys = Readonly<Record<KeyName, string>>;

/** Returns a name as it is for the i-th key of a grant, counted from 0: `record`, `record:2`. */
export const numbered = (name: string, i: number): string => (i === 0 ? name : `${name}:${i + 1}`);

/** Returns the user's keys as JSON, under the names of the script's arguments. */
export function keyArgsOf(keys: readonly string[]): { readonly keyJson: string } {
  const json: Record<string, string> & { keyJson: string } = { keyJson: JSON.stringify(keys[0]) };
  for (let i = 1; i < keys.length; i++) json[numbered('keyJson', i)] = JSON.stringify(keys[i]);
  return json;
}

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
  /** How the names of records begin before the user's key, as a pattern of MATCH, and how long that is. */
  readonly recordsBegin: { readonly pattern: string; readonly length: number };
  indexOf(lockId: string): string;
  /** The key under which a release by lockId leaves its nonce. Other programs of the wire format do not use this name. */
  markOf(lockId: string): string;
  /**
   * Turns the name of a record that the index holds into the key that a script declares. Undefined if a script may
   * read the record by that name itself.
   */
  recordFromIndex?(recordName: string): string;
}

// A user's key of this form would name an index or a fence counter, so it is always hashed. Other keys stay as they are,
// because other programs of the wire format must find them.
const INTERNAL = /^(id:[A-Za-z0-9_-]{22}$|fence:)/;

// A UTF-16 unit has at most three bytes, so most names fit without counting.
const SURELY_FITS = Math.floor((EFFECTIVE_KEY_BUDGET_BYTES - RESERVE_BYTES) / 3);

function nameOf(prefix: string, key: string): string {
  const name = `${prefix}:${key}`;
  return name.length <= SURELY_FITS ? name : storageKey(prefix, key);
}

const recordName = (prefix: string, key: string): string =>
  INTERNAL.test(key) ? makeHashedKey(prefix, key) : nameOf(prefix, key);

/** How names begin: those that other programs share, and those that only SyncGuard uses. */
interface Beginnings {
  readonly shared: string;
  readonly own: string;
  /** The one fence counter of all locks whose names begin so. Else each lock has its own. */
  readonly fenceCounter?: string;
}

function namesOf({ shared, own, fenceCounter }: Beginnings, key: string): Omit<LockKeys, 'index'> {
  const record = recordName(shared, key);
  return {
    record,
    fenceCounter: fenceCounter ?? nameOf(shared, `fence:${record}`),
    queue: nameOf(`${own}queue`, key),
  };
}

/** Returns the names that begin by the lockId. */
function layoutOf(
  ofId: (lockId: string) => Beginnings,
): Omit<LockLayout, 'createLockId' | 'recordOf' | 'recordsBegin'> {
  const indexOf = (lockId: string): string => nameOf(ofId(lockId).shared, `id:${lockId}`);
  return {
    keysOf: (keys, lockId) => {
      const begin = ofId(lockId);
      const names = Object.assign(namesOf(begin, keys[0] as string), { index: indexOf(lockId) });
      for (let i = 1; i < keys.length; i++)
        for (const [name, value] of Object.entries(namesOf(begin, keys[i] as string)))
          (names as Record<string, string>)[numbered(name, i)] = value;
      return names;
    },
    indexOf,
    markOf: (lockId) => `${ofId(lockId).own}released:${lockId}`,
  };
}

/** Returns whether a name, without its beginning, is that of a record. */
export const isOfRecord = (rest: string): boolean => !INTERNAL.test(rest);

/** Returns whether the records of keys that begin so may have other names, as such keys may be hashed. */
export const mayBeHashed = (prefix: string): boolean =>
  ['id:', 'fence:'].some((each) => each.startsWith(prefix) || prefix.startsWith(each));

/** Builds the names of docs/wire-format.md, which other programs share. For one server (standalone or Sentinel). */
export function specLayout(prefix: string): LockLayout {
  const begin = { shared: prefix, own: `${prefix}/` };
  return {
    createLockId: randomId,
    recordOf: (key) => recordName(prefix, key),
    recordsBegin: { pattern: `${escapeGlob(prefix)}:`, length: prefix.length + 1 },
    ...layoutOf(() => begin),
  };
}

const TAG_LENGTH = 3;
const USER_TAG = /\{([^}]+)\}/;

/**
 * Builds names that put all keys of a lock into one slot of a Cluster: `prefix:{tag}:...`. The lockId starts with the
 * tag, so that the lockId alone leads to the slot. All locks of a tag share one fence counter, which stays for ever, so that
 * 64^3 counters are all that any number of keys leaves behind. No record has its name, as keys that begin with `fence:` are hashed.
 */
export function slottedLayout(prefix: string, client: RedisClient): LockLayout {
  const clientPrefix = clientKeyPrefix(client);
  const tagOf = (key: string): string => hashTag(USER_TAG.exec(key)?.[1] ?? key, TAG_LENGTH);
  const begin = (tag: string): Beginnings => {
    const shared = `${prefix}:{${tag}}`;
    return { shared, own: `${prefix}/{${tag}}:`, fenceCounter: `${shared}:fence:all` };
  };
  return {
    createLockId: (keys) => {
      if (keys.length > 1) expectOneTag(keys);
      return tagOf(keys[0] as string) + randomId().slice(TAG_LENGTH);
    },
    recordOf: (key) => recordName(begin(tagOf(key)).shared, key),
    recordsBegin: { pattern: `${escapeGlob(prefix)}:{???}:`, length: `${prefix}:{???}:`.length },
    ...layoutOf((lockId) => begin(lockId.slice(0, TAG_LENGTH))),
    recordFromIndex: (name) => (name.startsWith(clientPrefix) ? name.slice(clientPrefix.length) : name),
  };
}

/** Refuses keys of several slots: one script decides on all keys of a call, and a Cluster runs a script within one slot. */
function expectOneTag(keys: readonly string[]): void {
  const tags = new Set(keys.map((key) => USER_TAG.exec(key)?.[1]));
  if (tags.size === 1 && !tags.has(undefined)) return;
  throw invalidCall(
    'Keys that are locked together must share a {tag} in the slotted layout, which Clusters need.',
    "Put the same text in braces into each of them: ['{user:7}:cart', '{user:7}:wallet'].",
  );
}
