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

/** The longest address that mail is sent to. */
const MAX_EMAIL_LENGTH = 254;
/** Hashing what a stranger sends takes longer the longer it is. */
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
   * 200, or 401. The fifth 401 in a minute for one account from one address is answered 429 instead, as is all
   * that follows for a minute, the right password included. Successes do not count. 503: Redis is away, and
   * nobody can tell how often this was tried.
   */
  @Post()
  @HttpCode(HttpStatus.OK)
  @RateLimit('login')
  login(@Body(CredentialsPipe) credentials: Credentials): { welcome: string } {
    // One answer for both, so that nobody learns who has an account.
    if (!this.logins.isRight(credentials)) throw new UnauthorizedException('Wrong e-mail or password.');
    return { welcome: credentials.email };
  }
}
