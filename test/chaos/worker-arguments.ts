export interface WorkerArguments {
  readonly worker: number;
  /** The first of all, in whose place another comes when it is killed: it also makes secrets and audits. */
  readonly first: boolean;
  readonly file: string;
  /** null: the memory backend. */
  readonly address: object | string | null;
  /** Makes a client of its own, as docs/redis.md says, in place of a connection of the package. */
  readonly ownClient: boolean;
  readonly seed: number;
  /** When epoch 0 began. */
  readonly startMs: number;
  readonly mutant?: string;
  /** Only calls that are answered once are made, and more of them. */
  readonly onlyOnce?: boolean;
}
