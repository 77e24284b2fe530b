import { setImmediate as nextTurn } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

type Collection = Map<unknown, unknown> | Set<unknown>;

const { set } = Map.prototype;
const { add } = Set.prototype;

/** Counts the entries of every Map and Set that is written to from `start()` to `stop()` and that can still be reached. */
export class KeptEntries {
  readonly #written: WeakRef<Collection>[] = [];
  readonly #known = new WeakSet<Collection>();

  start(): this {
    const note = this.#note.bind(this);
    Map.prototype.set = function (...entry) {
      note(this);
      return Reflect.apply(set, this, entry);
    };
    Set.prototype.add = function (value) {
      note(this);
      return Reflect.apply(add, this, [value]);
    };
    return this;
  }

  stop(): void {
    Map.prototype.set = set;
    Set.prototype.add = add;
  }

  async count(): Promise<number> {
    await nextTurn(); // What a WeakRef was asked for in this turn is not collected in it.
    collect();
    return this.#written.reduce((sum, written) => sum + (written.deref()?.size ?? 0), 0);
  }

  #note(collection: Collection): void {
    if (this.#known.has(collection)) return;
    this.#known.add(collection);
    this.#written.push(new WeakRef(collection));
  }
}
