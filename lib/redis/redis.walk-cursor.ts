import { wrongCursor } from '../core/page.js';

/** A walk over the keys of a server, or of a Cluster node by node, at one point. */
export interface WalkPlace {
  /** The cursor of SCAN on the server or node. */
  readonly scan: string;
  /** Only on a Cluster. */
  readonly cluster?: ClusterPlace;
}

/**
 * Slots move between nodes while a walk is on its way. So the walk notes of which slots a node has shown all keys: those that it
 * had for itself from the beginning to the end of its SCAN. The others are walked again, where they are then.
 */
export interface ClusterPlace {
  /** The id of the node. The nodes are walked in the order of their ids. */
  readonly node: string;
  /** How often all nodes were walked before. */
  readonly round: number;
  /** The slots that the node had for itself when its SCAN began. */
  readonly had: ReadonlySet<number>;
  readonly shown: ReadonlySet<number>;
}

const TEXT = /^(\d{1,20})(?:\.([0-9a-f]{40})\.(\d)\.([\d_-]*)\.([\d_-]*))?$/;
const SLOTS = 16_384;

/** Returns the place as text that a URL can carry. */
export function cursorOf({ scan, cluster }: WalkPlace): string {
  if (!cluster) return scan;
  const { node, round, had, shown } = cluster;
  return [scan, node, round, rangesOf(had), rangesOf(shown)].join('.');
}

/** @throws SyncGuardConfigError for a text that no walk has made */
export function placeOf(cursor: string): WalkPlace {
  const [, scan, node, round, had = '', shown = ''] = TEXT.exec(cursor) ?? [];
  if (scan === undefined || BigInt(scan) >= 2n ** 64n) throw wrongCursor(cursor);
  if (node === undefined) return { scan };
  return { scan, cluster: { node, round: Number(round), had: slotsIn(had), shown: slotsIn(shown) } };
}

/** Returns slots as text: `0-5460_7000`. */
function rangesOf(slots: ReadonlySet<number>): string {
  const ranges: string[] = [];
  for (let first = 0; first < SLOTS; first++) {
    if (!slots.has(first)) continue;
    const start = first;
    while (slots.has(first + 1)) first++;
    ranges.push(start === first ? `${start}` : `${start}-${first}`);
  }
  return ranges.join('_');
}

export function slotsIn(ranges: string, separator = '_'): Set<number> {
  const slots = new Set<number>();
  for (const range of ranges.split(separator)) {
    const [, first, last = first] = /^(\d{1,5})(?:-(\d{1,5}))?$/.exec(range) ?? [];
    for (let slot = Number(first); slot <= Math.min(Number(last), SLOTS - 1); slot++) slots.add(slot);
  }
  return slots;
}
