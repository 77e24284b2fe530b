import type { ClusterNode, ClusterOptions, RedisOptions } from 'ioredis';

/**
 * A `Redis` or `Cluster` of any copy of ioredis, recognised by its members. A queue package may load another
 * version, and TypeScript treats a class with private members as a different type in each copy.
 */
export interface IoredisClient {
  /** The state of the connection, such as `'ready'`. */
  readonly status: string;
  /** Makes a script a command of the client. */
  defineCommand(name: string, definition: { lua: string; numberOfKeys?: number }): void;
  /** Opens another connection with the same options. */
  duplicate(...args: never[]): unknown;
}

/** A client that only has `eval`, such as the mock of a test or a wrapper of your own. */
export interface EvalClient {
  /** Runs a Lua script on the server. */
  eval(lua: string, keyCount: number, ...keysAndArgs: (string | number | Buffer)[]): Promise<unknown>;
}

/** The types of the `redis` option. */
export type RedisConnectionOptions =
  | string
  | RedisOptions
  | IoredisClient
  | {
      /** Some nodes of the Cluster. The client finds the others. */
      nodes: ClusterNode[];
      /** The options of ioredis for a Cluster. */
      options?: ClusterOptions;
    };

/**
 * The part of an ioredis client that this package uses. ioredis 5 and 6, a `Redis` and a `Cluster`, and a
 * mock that only has `eval` all fit.
 */
export interface RedisClient extends Partial<
  EvalClient & Pick<IoredisClient, 'defineCommand' | 'duplicate'>
> {
  /** 'wait' | 'connecting' | 'connect' | 'ready' | 'reconnecting' | 'close' | 'end'. A mock has none. */
  readonly status?: string;
  readonly isCluster?: boolean;
  readonly options?: ClientOptions & { readonly redisOptions?: ClientOptions };
  readonly stream?: ClientStream;
  /** Only on a Cluster: the `host:port` of the nodes of each slot, the master first. */
  readonly slots?: readonly (readonly string[])[];
  readonly evalBuffer?: EvalClient['eval'];
  info?(): Promise<string>;
  ping?(): Promise<unknown>;
  client?(subcommand: string): Promise<unknown>;
  connect?(): Promise<unknown>;
  disconnect?(): void;
  quit?(): Promise<unknown>;
  subscribe?(...channels: string[]): Promise<unknown>;
  publish?(channel: string, message: string): Promise<unknown>;
  nodes?(role?: 'all' | 'master' | 'slave'): RedisClient[];
  scan?(
    from: string,
    match: 'MATCH',
    pattern: string,
    count: 'COUNT',
    keys: number,
  ): Promise<[string, string[]]>;
  call?(command: string, ...args: string[]): Promise<unknown>;
  refreshSlotsCache?(done: () => void): void;
  on?(event: string, listener: (...args: unknown[]) => void): unknown;
  off?(event: string, listener: (...args: unknown[]) => void): unknown;
}

/** Without the class of a connector, which is another one in each copy of ioredis. */
type ClientOptions = Omit<RedisOptions, 'Connector'>;

export interface ClientStream {
  readonly bytesRead: number;
  readonly connecting: boolean;
  readonly destroyed: boolean;
  cork(): void;
  uncork(): void;
  unref?(): unknown;
  destroy(error?: Error): unknown;
}

/** Returns the client's own `keyPrefix`. ioredis puts it before every declared key, and scripts see it in KEYS. */
export const clientKeyPrefix = (client: RedisClient): string =>
  client.options?.keyPrefix ?? (client.isCluster ? client.options?.redisOptions?.keyPrefix : undefined) ?? '';

/** Returns the connections of a client: itself, or one for each node of a Cluster. */
export const connectionsOf = (client: RedisClient, role: 'all' | 'master' = 'all'): RedisClient[] =>
  client.isCluster ? (client.nodes?.(role) ?? []) : [client];
