import { type FaultCode, SyncGuardError } from '../syncguard.errors.js';

/** A fault of the connection or the server: each feature gives it its own class on the way out. */
export class RedisFault extends SyncGuardError<FaultCode> {
  static override readonly brand: string = 'RedisFault';

  /** Whether the command may have reached the server: then what it did must be undone or asked again. */
  readonly mayHaveRun: boolean;

  constructor(
    code: FaultCode,
    message: string,
    init: { hint?: string; cause?: unknown; mayHaveRun?: boolean } = {},
  ) {
    super({ code, message, hint: init.hint, cause: init.cause });
    this.mayHaveRun = init.mayHaveRun ?? false;
  }
}

interface Rule {
  pattern: RegExp;
  code: FaultCode;
  message: string;
  hint: string;
  /** It keeps a connection from coming about, for as long as the options stay as they are. */
  ofConnecting?: true;
}

const NO_DATABASE = /DB index is out of range|invalid DB index|SELECT is not allowed in cluster mode/i;

/** What to do about a server that cannot be reached. */
export const UNREACHABLE_HINT =
  'Check the address in the `redis` option (`rediss://` where the server wants TLS) and that the server runs; SyncGuard reconnects by itself.';

/** The same, where the client speaks TLS. */
export const UNREACHABLE_BY_TLS_HINT =
  'Check that the address in the `redis` option leads to the TLS port (not the plain one) and that the server runs; SyncGuard reconnects by itself.';

// By what ioredis and Redis really say. The server's refusals (the first rules) mean: nothing was run.
const RULES: readonly Rule[] = [
  {
    pattern:
      /\b(NOAUTH|WRONGPASS|NOPERM)\b|invalid password|without any password configured|can't run this command/i,
    code: 'AuthFailed',
    message: 'Redis refused the credentials.',
    hint: 'Check user name, password and ACL of the `redis` option: SyncGuard needs EVAL, EVALSHA and the commands of its scripts on its keys.',
    ofConnecting: true,
  },
  {
    pattern: NO_DATABASE,
    code: 'ServiceUnavailable',
    message: 'The Redis server has no database of that number.',
    hint: 'Choose one that is there, or raise `databases` on the server. A Cluster has database 0 only.',
    ofConnecting: true,
  },
  {
    pattern: /\bWRONGTYPE\b|\bSYNCGUARD_FOREIGN\b|not an integer or out of range/,
    code: 'InvalidArgument',
    message: 'A Redis key that SyncGuard needs holds something else.',
    hint: 'Another program uses the same name: delete that key, or choose another `keyPrefix`.',
  },
  // Before the next one: a Cluster client that was refused each time ends with "Too many Cluster redirections".
  {
    pattern: /\b(READONLY|LOADING|CLUSTERDOWN|MASTERDOWN|NOREPLICAS|OOM|MISCONF|BUSY|TRYAGAIN)\b/,
    code: 'ServiceUnavailable',
    message: 'Redis cannot take writes at the moment.',
    hint: 'See `cause` for what it said; SyncGuard works again as soon as the server does.',
  },
  {
    pattern: /\b(MOVED|ASK) \d+ |\bCROSSSLOT\b|Too many Cluster redirections/,
    code: 'ServiceUnavailable',
    message: 'The Redis Cluster is moving that key, or the client does not follow it.',
    hint: 'On a Cluster pass `redis: { nodes: [...] }` or an ioredis `Cluster`, not a client of one node.',
  },
  {
    pattern: /subscriber mode/i,
    code: 'InvalidArgument',
    message: 'The Redis client is in subscriber mode, and takes no commands.',
    hint: 'Give SyncGuard a client of its own: `client.duplicate()`.',
  },
  {
    pattern:
      /\bERR_(SSL|TLS)_|\bEPROTO\b|_CERT\b|_CERT_|\bCERT_|VERIFY_LEAF|secure TLS connection|certificate/i,
    code: 'ServiceUnavailable',
    message: 'The TLS connection to Redis cannot be made.',
    hint: 'Check that the address in the `redis` option leads to the TLS port, and give `tls: { ca }` for a certificate of your own, `tls: { servername }` for one of another name. See `cause`.',
    ofConnecting: true,
  },
  {
    pattern: /Command timed out|ETIMEDOUT|timed? ?out/i,
    code: 'NetworkTimeout',
    message: 'Redis did not answer in time.',
    hint: 'Whether the command ran is not known.',
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
 * Gives an error of ioredis or Redis its code, words and hint. A copy of the original stays as `cause`.
 *
 * @param sent - the command had been handed to the client when it failed. Unless the server refused it, it may
 * have run: a Cluster sends again by itself, so that its last error says nothing of its first try.
 */
export function toRedisFault(error: unknown, sent = false): RedisFault {
  if (error instanceof RedisFault) return error;
  const text = errorText(error);
  const { code, message, hint } = findRule(text) ?? UNKNOWN;
  const mayHaveRun = sent && (error as { name?: unknown } | null)?.name !== 'ReplyError';
  return new RedisFault(code, message, { hint, cause: withoutCommand(error), mayHaveRun });
}

/** ioredis had nowhere to send the command, and was not to keep it. */
export const wasNotSent = (error: unknown): boolean =>
  /enableOfflineQueue options is false/.test((error as { message?: string } | null)?.message ?? '');

/** ioredis says so and goes on, on database 0. */
export const isNoDatabase = (error: unknown): boolean => NO_DATABASE.test(errorText(error));

/** The fault of an error that a connection cannot be made with until somebody changes the options. */
export function connectingFault(error: unknown): RedisFault | undefined {
  const rule = error === undefined ? undefined : findRule(errorText(error));
  return rule?.ofConnecting ? toRedisFault(error) : undefined;
}

const findRule = (text: string): Rule | undefined => RULES.find(({ pattern }) => pattern.test(text));

const UNKNOWN: Omit<Rule, 'pattern'> = {
  code: 'Internal',
  message: 'Redis answered with an error that SyncGuard does not know.',
  hint: 'See `cause`.',
};

/** ioredis hangs the failed command on its errors, and with it passwords, keys and lock ids. */
function withoutCommand(error: unknown): unknown {
  if (typeof error !== 'object' || error === null) return error;
  const { name, message, stack, code, lastNodeError } = error as Error & {
    code?: unknown;
    lastNodeError?: unknown;
  };
  const copy = new Error(message, lastNodeError ? { cause: withoutCommand(lastNodeError) } : undefined);
  return Object.assign(copy, { name, stack, ...(code === undefined ? {} : { code }) });
}

/** For a reply's decoder: the value under our key was not written by SyncGuard. */
export const foreignValue = (what: string): RedisFault =>
  toRedisFault(new Error(`SYNCGUARD_FOREIGN ${what}`));

/** Message and system code of an error, and of the node's error inside a Cluster's. */
function errorText(error: unknown): string {
  const { message, code, lastNodeError } = (error ?? {}) as {
    message?: unknown;
    code?: unknown;
    lastNodeError?: unknown;
  };
  const own = [message, code].filter((part) => typeof part === 'string').join(' ');
  return lastNodeError ? `${own} ${errorText(lastNodeError)}` : own || String(error);
}
