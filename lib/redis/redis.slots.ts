import type { RedisClient } from './redis.client.js';

const SLOTS = 16_384;
/** How many tags are tried. This is more than enough to find one for each slot of a Cluster. */
const MAX_TAGS = 20 * SLOTS;

/** Returns the slot of a hash tag: its CRC16 (XMODEM), as Redis Cluster specifies. */
function slotOf(tag: string): number {
  let crc = 0;
  for (const byte of Buffer.from(tag)) {
    crc ^= byte << 8;
    for (let bit = 0; bit < 8; bit++) crc = crc & 0x8000 ? ((crc << 1) ^ 0x1021) & 0xffff : crc << 1;
  }
  return crc % SLOTS;
}

/** The text in the first braces of a key. If a key has it, a Cluster computes the slot from this text alone. */
const TAG = /^[^{]*\{([^}]+)\}/;

/** Returns the hash tag of a key. Undefined if it has none. */
export const tagOfKey = (key: string): string | undefined => TAG.exec(key)?.[1];

export const slotOfKey = (key: string): number => slotOf(tagOfKey(key) ?? key);

/** Returns the master of a key's slot as `host:port`. Undefined unless the client knows the slots of a Cluster. */
export const ownerOf = (client: RedisClient, key: string): string | undefined =>
  client.slots?.[slotOfKey(key)]?.[0];

/** Returns a hash tag for each master that owns a slot. None unless the client knows the slots of a Cluster. */
export function tagsOfMasters(client: RedisClient): string[] {
  const { slots = [] } = client;
  const left = new Set(slots.map(([master]) => master));
  left.delete(undefined);
  const tags: string[] = [];
  for (let i = 0; left.size > 0 && i < MAX_TAGS; i++)
    if (left.delete(slots[slotOf(String(i))]?.[0])) tags.push(String(i));
  return tags;
}
