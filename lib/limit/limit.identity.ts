import { hash } from 'node:crypto';
import { shownHash } from '../core/keys.js';
import { joinKeyParts, type Labelled } from '../transport/request-parts.js';
import type { BlockTag } from './limit.types.js';

/**
 * Returns the policy's name and a checked key as one text. All calls with the same identity are counted together. A name is
 * printable ASCII, so the first NUL ends it, whatever the key holds.
 */
export const identityIn = (name: string, key: string): string => `${name}\0${key}`;

/** The length of the tag in the names of an identity's Redis keys. Hashes as logs show them are longer. */
export const KEY_TAG_LENGTH = 16;

export const keyTagOf = (identity: string): string =>
  hash('sha256', identity, 'base64url').slice(0, KEY_TAG_LENGTH);

export const nameOf = (identity: string): string => identity.slice(0, identity.indexOf('\0'));

export const keyOf = (identity: string): string => identity.slice(identity.indexOf('\0') + 1);

/** What says where a call comes from, and not for whom. */
const PLACES: ReadonlySet<string> = new Set(['ip', 'route']);

export const namesAccount = (label: string): boolean => !PLACES.has(label);

/**
 * Returns the identity without its address and route: the policy and the account, from wherever it is used. Undefined if
 * the identity has no account, or if its key is not of a route.
 */
export function accountOf(identity: string): string | undefined {
  const [name = '', key = ''] = identity.split('\0', 2);
  if (!key.startsWith('[["')) return undefined;
  try {
    const parts = (JSON.parse(key) as Labelled[]).filter(([label]) => namesAccount(label));
    // A window that a function has chosen is part of the name.
    return parts.length === 0 ? undefined : identityIn(name.replace(/;w=\d+$/, ''), joinKeyParts(parts));
  } catch {
    return undefined; // The app has passed such a text as a key.
  }
}

const TAG = /^([\w-]{16}|[0-9a-f]{24}|[0-9a-f]{64})$/;

/** Whose a block is, as logs and events name him. */
export interface Whose {
  readonly policy: string;
  readonly tag: string;
}

export const whoseOf = (identity: string): Whose => ({
  policy: nameOf(identity),
  tag: shownHash(keyOf(identity)),
});

/** Returns whether it is the tag in names of keys, or a hash as logs show it. */
export const isTag = (tag: unknown): tag is string => typeof tag === 'string' && TAG.test(tag);
export const isKeyTag = (tag: string): boolean => tag.length === KEY_TAG_LENGTH;

/** Returns whether an identity has this tag, under this policy. */
export const isTagged =
  ({ tag, policy }: BlockTag) =>
  (identity: string): boolean =>
    isNamed(nameOf(identity), policy) &&
    (isKeyTag(tag) ? keyTagOf(identity) : shownHash(keyOf(identity))) === tag;

/** What follows the name that the user has given: of a list, of a policy that is tried, of a window that a function has chosen. */
const REST = /^(#\d+)?( shadow)?(;w=\d+)?$/;

/** Returns whether a policy in force has the name that is asked for, or may have any. */
export const isNamed = (name: string | undefined, wanted: string | undefined): boolean =>
  wanted === undefined || (name?.startsWith(wanted) === true && REST.test(name.slice(wanted.length)));
