import { createHash, timingSafeEqual } from 'node:crypto';
import {
  type CanActivate,
  type ExecutionContext,
  ForbiddenException,
  Injectable,
  UnauthorizedException,
} from '@nestjs/common';

const MIN_LENGTH = 12;

/** The password of operators. Without one nothing starts, so that nobody leaves it open by mistake. */
export class OperatorPassword {
  readonly #digest: Buffer;

  constructor(password: string) {
    if (password.length < MIN_LENGTH)
      throw new Error(`OPERATOR_PASSWORD must have at least ${MIN_LENGTH} characters.`);
    this.#digest = digestOf(password);
  }

  /** Takes as long for each guess: digests are of one length, whatever the guess is. */
  isRight(guess: string): boolean {
    return timingSafeEqual(digestOf(guess), this.#digest);
  }
}

const digestOf = (text: string): Buffer => createHash('sha256').update(text).digest();

/**
 * Lets in who sends the password as `Authorization: Bearer ...`. A browser never adds that header by itself, so no other
 * site can act in the name of a visitor. Where you take cookies or Basic instead, a browser does, and what keeps other sites
 * out then is that a request of theirs is refused, reads too.
 */
@Injectable()
export class OperatorGuard implements CanActivate {
  constructor(private readonly password: OperatorPassword) {}

  canActivate(context: ExecutionContext): true {
    const { headers } = context.switchToHttp().getRequest<{ headers: Record<string, string | undefined> }>();
    if (isOfAnotherSite(headers)) throw new ForbiddenException('This is for the page of this app only.');
    const [, guess] = /^Bearer (.+)$/.exec(headers.authorization ?? '') ?? [];
    if (guess === undefined || !this.password.isRight(guess))
      throw new UnauthorizedException('Wrong password.');
    return true;
  }
}

/** A program that is no browser, such as curl, sends neither header. */
function isOfAnotherSite(headers: Record<string, string | undefined>): boolean {
  const { origin, host, 'sec-fetch-site': site = 'same-origin' } = headers;
  const isOwn = origin === undefined || (URL.canParse(origin) && new URL(origin).host === host);
  return site !== 'same-origin' || !isOwn;
}
