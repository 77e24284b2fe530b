import { shownHash } from '../core/keys.js';
import { KEY_TAG_LENGTH, keyOf, keyTagOf, nameOf } from './limit.backend.js';
import type { BlockTag } from './limit.types.js';

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
