import { type FaultCode, SyncGuardError, type SyncGuardErrorInit } from '../core/errors.js';

/** A fault of the connection or the server. Each feature turns it into an error of its own class. */
export class RedisFault extends SyncGuardError<FaultCode> {
  static override readonly brand: string = 'RedisFault';

  /** Whether the command may have run. If so, its effect must be undone, or the call repeated. */
  readonly mayHaveRun: boolean;

  constructor(code: FaultCode, message: string, { mayHaveRun = false, ...init }: RedisFaultInit = {}) {
    super({ code, message, ...init });
    this.mayHaveRun = mayHaveRun;
  }
}

/** Returns the fault of a call whose signal has aborted. */
export const abortedBy = (signal: AbortSignal | undefined, mayHaveRun = false): RedisFault =>
  new RedisFault('Aborted', 'The call was aborted by its signal.', { cause: signal?.reason, mayHaveRun });

type RedisFaultInit = Pick<SyncGuardErrorInit, 'hint' | 'cause' | 'context'> & { mayHaveRun?: boolean };

interface Rule {
  pattern: RegExp;
  code: FaultCode;
  message: string;
  hint: string;
  /** The fault prevents a connection until the options change. */
  ofConnecting?: true;
}

const NO_DATABASE = /DB index is out of range|invalid DB index|SELECT is not allowed in cluster mode/i;

export const UNREACHABLE_HINT =
  'Check the address in the `redis` option (`rediss://` where the server wants TLS), and check that the server runs. SyncGuard reconnects by itself.';

export const UNREACHABLE_BY_TLS_HINT =
  'Check that the address in the `redis` option leads to the TLS port and not to the plain one, and that the server runs. SyncGuard reconnects by itself.';

/** Redis 7.2 and newer name the command inside a script, too. */
const FORBIDDEN_COMMAND = /can't run this command|no permissions to run the '([\w-]+)/;

const ACL_HINT = 'Allow what the ACL in the docs about Redis (docs/redis.md) allows.';

// The patterns match the messages of ioredis and Redis. The first rule that matches counts.
const RULES: readonly Rule[] = [
  {
    pattern: FORBIDDEN_COMMAND,
    code: 'AuthFailed',
    message: 'The ACL of Redis forbids a command that SyncGuard needs.',
    hint: ACL_HINT,
    ofConnecting: true,
  },
  {
    pattern: /\bNOPERM\b|executing the script can't (access|publish)|ACL failure in script/,
    code: 'AuthFailed',
    message: 'The ACL of Redis forbids a key or a channel that SyncGuard needs.',
    hint: 'Allow `~PREFIX:* ~PREFIX/* &PREFIX/*`, where PREFIX is the option `keyPrefix`, and the `set.key` of fences.',
    ofConnecting: true,
  },
  {
    pattern: /\b(NOAUTH|WRONGPASS)\b|invalid password|without any password configured/i,
    code: 'AuthFailed',
    message: 'Redis refused the credentials.',
    hint: 'Check the user name and the password of the `redis` option.',
    ofConnecting: true,
  },
  {
    pattern: /No such master with that name/i,
    code: 'ServiceUnavailable',
    message: 'The Sentinels know no primary of that name.',
    hint: 'Check `name` in the `redis` option.',
    ofConnecting: true,
  },
  {
    pattern: /cluster support disabled/i,
    code: 'ServiceUnavailable',
    message: 'The `nodes` of the `redis` option are no nodes of a Redis Cluster.',
    hint: 'For one server write `redis: { host, port }`.',
    ofConnecting: true,
  },
  {
    pattern: NO_DATABASE,
    code: 'ServiceUnavailable',
    message: 'The Redis server has no database with that number.',
    hint: 'Choose an existing database, or raise `databases` on the server. A Cluster has database 0 only.',
    ofConnecting: true,
  },
  {
    pattern: /\bWRONGTYPE\b|\bSYNCGUARD_FOREIGN\b|not an integer or out of range/,
    code: 'InvalidArgument',
    message: 'A Redis key that SyncGuard needs has a value of another program.',
    hint: 'Delete that key, or choose another `keyPrefix`. If the key is the `set.key` of a fence, choose another key.',
  },
  {
    pattern: /\bSYNCGUARD_NEWER\b/,
    code: 'ServiceUnavailable',
    message: 'This data was written by a newer version of SyncGuard, and stays as it is.',
    hint: 'Update this process, too. Nothing was changed.',
  },
  {
    pattern: /\bSYNCGUARD_UNREADABLE\b/,
    code: 'Internal',
    message: 'A record of a budget in Redis cannot be read, so nothing was changed.',
    hint: 'Do not delete the key: it has the other budgets of the root, too. `verify(root)` lists what cannot be read, and `verify(root, { repair: true })` lets it go.',
  },
  // When a Cluster client gives up, its message has "Too many Cluster redirections" and the error of the node. The
  // error of the node says more. So this rule, which may match it, comes before the rule for redirections.
  {
    pattern: /\b(READONLY|LOADING|CLUSTERDOWN|MASTERDOWN|NOREPLICAS|OOM|MISCONF|BUSY|TRYAGAIN)\b/,
    code: 'ServiceUnavailable',
    message: 'Redis refuses writes at the moment.',
    hint: 'See `cause` for the message of the server. SyncGuard works again as soon as the server does.',
  },
  {
    pattern: /\b(MOVED|ASK) \d+ |\bCROSSSLOT\b|Too many Cluster redirections/,
    code: 'ServiceUnavailable',
    message: 'The Redis Cluster is moving that key, or the client does not follow it.',
    hint: 'For a Cluster pass `redis: { nodes: [...] }` or an ioredis `Cluster`, and not a client of one node.',
  },
  {
    pattern: /subscriber mode/i,
    code: 'InvalidArgument',
    message: 'The Redis client of the `redis` option is in subscriber mode, so it refuses commands.',
    hint: 'Pass a client of its own to SyncGuard, such as `client.duplicate()`.',
  },
  {
    pattern:
      /\bERR_(SSL|TLS)_|\bEPROTO\b|_CERT\b|_CERT_|\bCERT_|VERIFY_LEAF|secure TLS connection|certificate/i,
    code: 'ServiceUnavailable',
    message: 'The TLS connection to Redis cannot be made.',
    hint: 'Check that the address in the `redis` option leads to the TLS port. Set `tls: { ca }` for a certificate of your own, and `tls: { servername }` for a certificate with another name. See `cause`.',
    ofConnecting: true,
  },
  {
    pattern: /Command timed out|ETIMEDOUT|timed? ?out/i,
    code: 'NetworkTimeout',
    message: 'Redis did not answer in time.',
    hint: 'The command may or may not have run. If the server is only slow, raise the `commandTimeout` of the client.',
  },
  {
    pattern:
      /Connection is closed|max retries per request|isn't writeable|ECONNRESET|ECONNREFUSED|ENOTFOUND|EPIPE|EHOSTUNREACH|ENETUNREACH|EAI_AGAIN|Socket closed|aborted due to connection|None of startup nodes|Failed to refresh slots|Cluster (isn't ready|is ended)|All sentinels are unreachable/i,
    code: 'ServiceUnavailable',
    message: 'Redis cannot be reached.',
    hint: UNREACHABLE_HINT,
  },
];

/**
 * Turns an error of ioredis or Redis into a fault with a code, a message and a hint. `cause` is a copy of the
 * error.
 *
 * @param sent - true if the command was passed to the client before it failed. It may have run then, unless the server
 *   refused it. A Cluster client sends again by itself, so its last error does not describe the first attempt.
 * @param forbidden - the commands that the ACL is known to forbid, for an error that does not name them
 */
export function toRedisFault(error: unknown, sent = false, forbidden: readonly string[] = []): RedisFault {
  if (error instanceof RedisFault) return error;
  const text = errorText(error);
  const { code, message: general, hint } = findRule(text) ?? UNKNOWN;
  const named = forbiddenCommand(error);
  const message = named === undefined ? general : forbids(named ? [named] : forbidden);
  const mayHaveRun = sent && (error as { name?: unknown } | null)?.name !== 'ReplyError';
  return new RedisFault(code, message, { hint, cause: withoutCommand(error), mayHaveRun });
}

/** Returns the command that the ACL has refused: '' if the error does not name it. Undefined for every other error. */
export function forbiddenCommand(error: unknown): string | undefined {
  const found = FORBIDDEN_COMMAND.exec(errorText(error));
  return found ? (found[1] ?? '').toUpperCase() : undefined;
}

const forbids = (commands: readonly string[]): string => {
  if (commands.length === 0) return 'The ACL of Redis forbids a command that SyncGuard needs.';
  return `The ACL of Redis forbids ${commands.join(', ')}.`;
};

/** Returns what a health check says where the ACL forbids commands of our scripts. */
export const aclFault = (commands: readonly string[]): SyncGuardError =>
  new SyncGuardError({ code: 'REDIS_ACL', message: forbids(commands), hint: ACL_HINT });

/** Returns whether ioredis had no connection for the command and did not queue it. */
export const wasNotSent = (error: unknown): boolean =>
  /enableOfflineQueue options is false/.test(errorText(error));

/** Returns whether the database of the options does not exist. ioredis emits such an error and then uses database 0. */
export const isNoDatabase = (error: unknown): boolean => NO_DATABASE.test(errorText(error));

/** Returns the fault of an error that prevents a connection until the options change. Undefined for other errors. */
export const connectingFault = (error: unknown): RedisFault | undefined =>
  findRule(errorText(error))?.ofConnecting ? toRedisFault(error) : undefined;

const findRule = (text: string): Rule | undefined => RULES.find(({ pattern }) => pattern.test(text));

const UNKNOWN: Omit<Rule, 'pattern'> = {
  code: 'Internal',
  message: 'Redis answered with an error that SyncGuard does not know.',
  hint: 'See `cause` for the message of the server.',
};

type ClientError = Error & { readonly code?: unknown; readonly lastNodeError?: unknown };

/** Copies an error of ioredis without the failed command, which may contain passwords, keys and lock ids. */
function withoutCommand(error: unknown): unknown {
  if (typeof error !== 'object' || error === null) return error;
  const { name, message, stack, code, lastNodeError } = error as ClientError;
  const copy = new Error(message, lastNodeError ? { cause: withoutCommand(lastNodeError) } : undefined);
  return Object.assign(copy, { name, stack, ...(code === undefined ? {} : { code }) });
}

/** Returns the fault for a key of ours that holds a value of another program. */
export const foreignValue = (what: string): RedisFault =>
  toRedisFault(new Error(`SYNCGUARD_FOREIGN ${what}`));

/** Returns null for a fault which says that a key holds a value of another program, and throws every other one. */
export function unlessForeign(fault: unknown): null {
  if (fault instanceof RedisFault && fault.code === 'InvalidArgument') return null;
  throw fault;
}

/** Returns the fault for a record of ours that cannot be read, or that a newer version has written. */
export const unreadableValue = (text: string): RedisFault =>
  toRedisFault(new Error(isNewer(text) ? 'SYNCGUARD_NEWER' : 'SYNCGUARD_UNREADABLE'));

/** Returns whether a stored text begins with a version above 1. */
const isNewer = (text: string): boolean => Number(/^(\d{1,3}) /.exec(text)?.[1] ?? 1) > 1;

/** Returns the message and the system code of an error. For an error of a Cluster it includes those of the node's error. */
function errorText(error: unknown): string {
  const { message, code, lastNodeError } = (error ?? {}) as Partial<ClientError>;
  const own = [message, code].filter((part) => typeof part === 'string').join(' ');
  return lastNodeError ? `${own} ${errorText(lastNodeError)}` : own || String(error);
}
