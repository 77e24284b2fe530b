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
}

// By what ioredis and Redis really say. The server's refusals (first three rules) mean: nothing was run.
const RULES: readonly Rule[] = [
  {
    pattern: /\b(NOAUTH|WRONGPASS|NOPERM)\b|invalid password|without any password configured/i,
    code: 'AuthFailed',
    message: 'Redis refused the credentials.',
    hint: 'Check user name, password and ACL of the `redis` option: SyncGuard needs EVAL, EVALSHA and the commands of its scripts on its keys.',
  },
  {
    pattern: /\bWRONGTYPE\b|\bSYNCGUARD_FOREIGN\b|not an integer or out of range/,
    code: 'InvalidArgument',
    message: 'A Redis key that SyncGuard needs holds something else.',
    hint: 'Another program uses the same name: delete that key, or choose another `keyPrefix`.',
  },
  {
    pattern: /\b(READONLY|LOADING|CLUSTERDOWN|MASTERDOWN|NOREPLICAS|OOM|MISCONF|BUSY|TRYAGAIN)\b/,
    code: 'ServiceUnavailable',
    message: 'Redis cannot take writes at the moment.',
    hint: 'See `cause` for what it said; SyncGuard works again as soon as the server does.',
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
    hint: 'Check the address in the `redis` option and that the server runs; SyncGuard reconnects by itself.',
  },
];

// An error that names none of these was thrown before the command left, or came back as the server's refusal.
const UNKNOWN_OUTCOME = /timed? ?out|ETIMEDOUT|closed|ECONNRESET|EPIPE|max retries|aborted due to/i;

/** Gives an error of ioredis or Redis its code, words and hint. The original stays as `cause`. */
export function toRedisFault(error: unknown): RedisFault {
  if (error instanceof RedisFault) return error;
  const text = errorText(error);
  const rule = RULES.find(({ pattern }) => pattern.test(text));
  if (!rule)
    return new RedisFault('Internal', 'Redis answered with an error that SyncGuard does not know.', {
      hint: 'See `cause`.',
      cause: error,
    });
  return new RedisFault(rule.code, rule.message, {
    hint: rule.hint,
    cause: error,
    mayHaveRun: UNKNOWN_OUTCOME.test(text),
  });
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
