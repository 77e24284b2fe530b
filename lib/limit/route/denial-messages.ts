import type { Logger } from '@nestjs/common';
import { everyMinute } from '../../core/every-minute.js';
import { isPromiseLike } from '../../core/foreign-values.js';
import { describe } from '../../core/validate.js';
import type { TooManyAttemptsError } from '../limit.errors.js';
import type { CallVisit } from './call-visit.js';
import type { ResponseLike } from './limited-call.js';

/** How long a denied client waits for what a function of the app says to it. */
const MESSAGE_WITHIN_MS = 1_000;

const LATE = Symbol('late');

/** Asks the `message` of a policy, where it is a function, what a denied client is told. */
export class DenialMessages {
  readonly #late: (line: string) => void;

  constructor(
    logger: Logger,
    private readonly functionFailed: (line: string, stack?: string) => void,
  ) {
    this.#late = everyMinute((line) => logger.warn(line));
  }

  /** Returns undefined, and the client gets the refusal that it gets without a `message`, if the function fails or is late. */
  async of(
    { deniedBy, context }: CallVisit,
    { decision }: TooManyAttemptsError,
  ): Promise<string | object | undefined> {
    if (typeof deniedBy?.message !== 'function') return undefined;
    const { name, message } = deniedBy;
    try {
      const told: unknown = await inTime(message(decision, context));
      if (typeof told === 'string' || (typeof told === 'object' && told !== null)) return told;
      if (told !== LATE) throw new TypeError(`It returned ${describe(told)}, and not a text or an object.`);
      this.#late(
        `RATE_LIMIT_MESSAGE_LATE: The \`message\` of the policy ${name} has not answered within ${MESSAGE_WITHIN_MS} ms, so the client was told the text that it is told without one.`,
      );
    } catch (error) {
      this.functionFailed(
        `The \`message\` of the policy ${name} failed.`,
        (error as Error | undefined)?.stack,
      );
    }
    return undefined;
  }
}

/** Returns what a function of the app answers, or LATE. What it throws after that is of no use to anybody. */
function inTime(answer: unknown): unknown {
  if (!isPromiseLike(answer)) return answer;
  let timer: NodeJS.Timeout | undefined;
  const late = new Promise((resolve) => (timer = setTimeout(resolve, MESSAGE_WITHIN_MS, LATE)));
  return Promise.race([answer, late]).finally(() => clearTimeout(timer));
}

/**
 * Keeps a type such as `application/problem+json` that a `message` has set for its body. On Express Nest 11 replaces the type of
 * what an exception says by `application/json`, with a line in the log for each. It does not if the type is set only when
 * the body is written.
 */
export function keepJsonType(response: ResponseLike): void {
  const type = response.getHeader?.('content-type');
  const { json } = response;
  if (!json || typeof type !== 'string' || !/\+json\s*(;|$)/i.test(type)) return;
  response.removeHeader?.('content-type');
  response.json = (body) => {
    if (!response.getHeader?.('content-type')) response.setHeader?.('content-type', type);
    return json.call(response, body);
  };
}
