import { createHmac } from 'node:crypto';
import { BoundedMap } from './bounded-map.js';

/** How many hashes under a secret are remembered. The events of a call ask for the same ones, and each takes some us. */
const MOST_KNOWN = 256;

const label = Buffer.alloc(12);

/**
 * Returns a short label for a key or an id in logs and events: 24 hex digits. It does not hide the key: a short key can
 * be found by hashing guesses. Other programs compute the same label (docs/wire-format.md).
 *
 * @example hashKey('payment:123') // 'a422dabee27fcc7ad506f372'
 */
export function hashKey(value: string): string {
  const text = value.normalize('NFC');
  let h1 = 0;
  let h2 = 0;
  let h3 = 0;
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i);
    h1 = (Math.imul(31, h1) + unit) >>> 0;
    h2 = (Math.imul(127, h2) + 3 * unit) >>> 0;
    h3 = (Math.imul(2047, h3) + 7 * unit) >>> 0;
  }
  label.writeUInt32BE(h1, 0);
  label.writeUInt32BE(h2, 4);
  label.writeUInt32BE(h3, 8);
  return label.toString('hex');
}

type Hash = (value: string) => string;

/** Returns the function that hashes keys and ids for who reads logs, errors and events. Nobody can guess under a secret. */
export const hashUnder = (secret: string | undefined): Hash =>
  secret === undefined
    ? hashKey
    : remembered((value) => createHmac('sha256', secret).update(value.normalize('NFC')).digest('hex'));

function remembered(hash: Hash): Hash {
  const known = new BoundedMap<string>(MOST_KNOWN);
  return (value) => {
    let hashed = known.get(value);
    if (hashed === undefined) known.set(value, (hashed = hash(value)));
    return hashed;
  };
}

let shown: Hash = hashKey;

/** Has {@link shownHash} hash by this function in the whole process: errors do not know which app they are of. */
export function showHashesBy(hash: Hash): void {
  shown = hash;
}

/** Returns the hash of a key or an id as logs and errors show it: by the `telemetry.hashSecret` that was set last, if any. */
export const shownHash: Hash = (value) => shown(value);
