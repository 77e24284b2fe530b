import {
  BadRequestException,
  Body,
  Controller,
  HttpCode,
  HttpStatus,
  Injectable,
  type PipeTransform,
  Post,
  UnauthorizedException,
} from '@nestjs/common';
import { RateLimit } from 'nestjs-syncguard';
import { type Credentials, LoginService } from './login.service.js';

/** The longest possible address of an email. */
const MAX_EMAIL_LENGTH = 254;
/** Hashing a longer password takes longer, so strangers may not send one of any length. */
const MAX_PASSWORD_LENGTH = 200;

@Injectable()
class CredentialsPipe implements PipeTransform<unknown, Credentials> {
  transform(body: unknown): Credentials {
    const { email, password } = Object(body) as Record<string, unknown>;
    if (typeof email !== 'string' || email.length > MAX_EMAIL_LENGTH || !/^[^\s@]+@[^\s@]+$/.test(email))
      throw new BadRequestException(`email must be an address of at most ${MAX_EMAIL_LENGTH} characters.`);
    if (typeof password !== 'string' || password === '' || password.length > MAX_PASSWORD_LENGTH)
      throw new BadRequestException(`password must be a string of 1 to ${MAX_PASSWORD_LENGTH} characters.`);
    return { email, password };
  }
}

@Controller('login')
export class LoginController {
  constructor(private readonly logins: LoginService) {}

  /**
   * - 200 or 401.
   * - 429: the fifth 401 in a minute for one account from one address, and every further call for a minute,
   *   even with the right password. Successes do not count.
   * - 503: Redis cannot be reached, so failures cannot be counted.
   */
  @Post()
  @HttpCode(HttpStatus.OK)
  @RateLimit('login')
  login(@Body(CredentialsPipe) credentials: Credentials): { welcome: string } {
    // The answer is the same for both, so that it does not reveal which accounts exist.
    if (!this.logins.isRight(credentials)) throw new UnauthorizedException('Wrong e-mail or password.');
    return { welcome: credentials.email };
  }
}
