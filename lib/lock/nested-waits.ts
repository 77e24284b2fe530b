import { type LockFrame, lockFrames } from './current-lock.js';

// Shared by all copies of this package and all modules of the process: a call may hold locks of several.
const WAITS = Symbol.for('syncguard:nested-waits');
type Waits = WeakMap<object, Map<string, Set<NestedWait>>>;
const shared = globalThis as { [WAITS]?: Waits };

/** The calls that wait, by each key that they hold. Calls that hold nothing are not among them. */
const waits = (): Waits => (shared[WAITS] ??= new WeakMap());

/** A call that waits for locks while it holds others. */
export class NestedWait {
  #lossSignals: readonly AbortSignal[] | undefined;
  #entered: { readonly holding: Map<string, Set<NestedWait>>; readonly key: string }[] = [];

  /**
   * @param owner - the backend of the keys
   * @param keys - what it waits for
   * @param inside - the innermost lock around the call
   */
  constructor(
    readonly owner: object,
    readonly keys: readonly string[],
    readonly inside: LockFrame,
  ) {}

  /**
   * Returns whether this wait would never end: who holds one of its keys waits, itself or through others, for a key that
   * this call holds. A body that has such a wait in it ends no sooner than the wait.
   */
  closesCycle(): boolean {
    const found = new Set<NestedWait>([this]);
    // What is added while the loop runs is visited too.
    for (const wait of found)
      for (const other of wait.#ofHolders()) {
        if (other.keys.some((key) => this.#holds(other.owner, key))) return true;
        found.add(other);
      }
    return false;
  }

  /**
   * The signals of the locks around the call that were held when it began to wait. Who waits under a lock that is lost
   * already does so on purpose, to tidy up.
   */
  get lossSignals(): readonly AbortSignal[] {
    return (this.#lossSignals ??= this.#framesHeld().map(({ context }) => context.signal));
  }

  enter(): void {
    for (const { owner, key } of this.#held()) {
      let ofOwner = waits().get(owner);
      if (!ofOwner) waits().set(owner, (ofOwner = new Map<string, Set<NestedWait>>()));
      let holding = ofOwner.get(key);
      if (!holding) ofOwner.set(key, (holding = new Set()));
      holding.add(this);
      this.#entered.push({ holding: ofOwner, key });
    }
  }

  leave(): void {
    for (const { holding, key } of this.#entered) {
      const others = holding.get(key);
      if (others?.delete(this) && others.size === 0) holding.delete(key);
    }
    this.#entered = [];
  }

  /** Returns the waits of the calls that hold what this one waits for. */
  #ofHolders(): NestedWait[] {
    const ofOwner = waits().get(this.owner);
    if (!ofOwner) return [];
    return this.keys.flatMap((key) =>
      [...(ofOwner.get(key) ?? [])].filter((other) => other.#holds(this.owner, key)),
    );
  }

  get heldKeys(): string[] {
    return this.#held().map(({ key }) => key);
  }

  /** A lock that was lost, or whose body has ended, is not held any more. */
  #holds(owner: object, key: string): boolean {
    return this.#held().some((held) => held.owner === owner && held.key === key);
  }

  #held(): { owner: object; key: string }[] {
    return this.#framesHeld().flatMap(({ owner, context }) => context.keys.map((key) => ({ owner, key })));
  }

  #framesHeld(): LockFrame[] {
    const held: LockFrame[] = [];
    lockFrames.find((frame) => {
      if (!frame.isLost()) held.push(frame);
      return false;
    }, this.inside);
    return held;
  }
}
