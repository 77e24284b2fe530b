import { BoundedMap } from '../core/bounded-map.js';

/** Which identities are meant: these, or those for which it returns true. */
export type Meant = readonly string[] | ((identity: string) => boolean);

/** What is remembered of identities in this process. */
export class Remembered<Value> extends BoundedMap<Value> {
  constructor(most = 10_000) {
    super(most);
  }

  forget(meant: Meant): void {
    const identities = typeof meant === 'function' ? [...this.keys()].filter(meant) : meant;
    for (const identity of identities) this.delete(identity);
  }
}
