import { randomUUID } from 'node:crypto';
import type { Server } from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';
import {
  type ArgumentsHost,
  Body,
  type CallHandler,
  Catch,
  Controller,
  type ExecutionContext,
  Get,
  HttpCode,
  Injectable,
  type NestInterceptor,
  type PipeTransform,
  Post,
  Res,
  type Type,
  UnauthorizedException,
  UseFilters,
  UseGuards,
  UseInterceptors,
} from '@nestjs/common';
import type { INestApplication, NestApplicationOptions } from '@nestjs/common';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { Test } from '@nestjs/testing';
import { from, mergeMap, type Observable } from 'rxjs';
import { days, type LimitPolicy, RateLimit, SyncGuardModule, type SyncGuardOptions } from 'nestjs-syncguard';
import { NAMES_ACCOUNT } from '../../../lib/limit/presets.js';

/** So many wrong guesses at one account are let in. The last of them sets the block. */
export const THRESHOLD = 3;

const GUESSES = {
  name: 'guesses',
  keyBy: 'body.email',
  count: 'failure',
  resetOnSuccess: true,
  [NAMES_ACCOUNT]: true, // As in the presets, so that accents do not count.
  isFailure: (error, { handled, statusCode }) =>
    (handled && error !== undefined) || statusCode === 401 || statusCode === 403 || undefined,
  temp: { windowMs: days(300), threshold: THRESHOLD, blockMs: days(300) },
} satisfies LimitPolicy & Record<typeof NAMES_ACCOUNT, true>;

/** Without a name a limit is of its route alone, so it could be of one path alone. */
const { name: _, ...OWN_GUESSES } = GUESSES;

interface Guess {
  /** Of the account. A database finds it by `email`, however that is written. */
  readonly id: string;
  readonly email: unknown;
  readonly code: string;
  /** How long the judge takes, in ms. */
  readonly judgeMs?: number | string;
}

/** What has happened to one account, as the server saw it. */
export class Account {
  readonly id = randomUUID();
  readonly email = `${this.id}@example.org`;
  judged = 0;
  inside = 0;
  mostInside = 0;
}

const accounts = new Map<string, Account>();

export function newAccount(): Account {
  const account = new Account();
  accounts.set(account.id, account);
  return account;
}

export const forget = (account: Account): boolean => accounts.delete(account.id);

/** Judges a guess: from here on the server knows whether it was right, and may leak that. */
async function judge({ id, code, judgeMs = 0 }: Guess): Promise<boolean> {
  const account = accounts.get(id);
  if (account) {
    account.judged++;
    account.mostInside = Math.max(account.mostInside, ++account.inside);
  }
  if (Number(judgeMs) > 0) await sleep(Number(judgeMs));
  if (account) account.inside--;
  return code === 'right';
}

const bodyOf = (context: ExecutionContext): Guess =>
  context.switchToHttp().getRequest<{ body: Guess }>().body;

@Injectable()
class Throws {
  async canActivate(context: ExecutionContext): Promise<boolean> {
    if (await judge(bodyOf(context))) return true;
    throw new UnauthorizedException();
  }
}

@Injectable()
class ReturnsFalse {
  canActivate(context: ExecutionContext): Promise<boolean> {
    return judge(bodyOf(context));
  }
}

@Injectable()
class Intercepts implements NestInterceptor {
  intercept(context: ExecutionContext, next: CallHandler): Observable<unknown> {
    const refusing = async (value: unknown): Promise<unknown> => {
      if (await judge(bodyOf(context))) return value;
      throw new UnauthorizedException();
    };
    return next.handle().pipe(mergeMap((value: unknown) => from(refusing(value))));
  }
}

@Injectable()
class Pipes implements PipeTransform<Guess, Promise<Guess>> {
  async transform(guess: Guess): Promise<Guess> {
    if (await judge(guess)) return guess;
    throw new UnauthorizedException();
  }
}

class WrongCode extends Error {}

interface Reply {
  status(code: number): { send(body: object): void };
}

@Catch(WrongCode)
class Refuses {
  catch(_error: WrongCode, host: ArgumentsHost): void {
    host.switchToHttp().getResponse<Reply>().status(401).send({});
  }
}

const Limited = (): MethodDecorator => RateLimit(GUESSES);

@Controller()
class Judges {
  @Limited()
  @UseGuards(Throws)
  @HttpCode(200)
  @Post(['guard', 'guard/too'])
  guard(): object {
    return {};
  }

  @Limited()
  @UseGuards(ReturnsFalse)
  @HttpCode(200)
  @Post(['false', 'false/too'])
  false(): object {
    return {};
  }

  @Limited()
  @HttpCode(200)
  @Post(['pipe', 'pipe/too'])
  pipe(@Body(Pipes) guess: Guess): object {
    return { for: guess.email };
  }

  @Limited()
  @HttpCode(200)
  @Post(['handler', 'handler/too'])
  async handler(@Body() guess: Guess): Promise<object> {
    if (!(await judge(guess))) throw new UnauthorizedException();
    return {};
  }

  @RateLimit(OWN_GUESSES)
  @HttpCode(200)
  @Post(['own', 'own/too'])
  own(@Body() guess: Guess): Promise<object> {
    return this.handler(guess);
  }

  /** As a search that finds nothing and throws: the wrong guess ends as 500. */
  @Limited()
  @HttpCode(200)
  @Post(['error', 'error/too'])
  async error(@Body() guess: Guess): Promise<object> {
    if (!(await judge(guess))) throw new TypeError('user is null');
    return {};
  }

  @Limited()
  @Post(['response', 'response/too'])
  async response(@Body() guess: Guess, @Res() reply: Reply): Promise<void> {
    reply.status((await judge(guess)) ? 200 : 401).send({});
  }

  @Limited()
  @UseInterceptors(Intercepts)
  @HttpCode(200)
  @Post(['interceptor', 'interceptor/too'])
  interceptor(): object {
    return {};
  }

  @Limited()
  @UseFilters(Refuses)
  @HttpCode(200)
  @Post(['filter', 'filter/too'])
  async filter(@Body() guess: Guess): Promise<object> {
    if (!(await judge(guess))) throw new WrongCode();
    return {};
  }

  /** The success that an attacker gets for nothing: a code is sent. */
  @Limited()
  @HttpCode(200)
  @Post('send')
  send(): object {
    return {};
  }

  /** What a client does not read, so that the answers behind it wait. */
  @Get('download')
  download(): string {
    return 'x'.repeat(4_000_000);
  }
}

export interface Target {
  readonly app: INestApplication;
  readonly port: number;
}

type Next = (error?: unknown) => void;

/** A session store that takes its time. */
const pausing = (request: { headers: Record<string, unknown> }, _response: unknown, next: Next): void => {
  const ms = Number(request.headers['x-pause'] ?? 0);
  if (ms > 0) setTimeout(next, ms);
  else next();
};

export async function startTarget(
  adapter: 'express' | 'fastify' | 'fastify-http2',
  options: SyncGuardOptions,
): Promise<Target> {
  const metadata = { imports: [SyncGuardModule.forRoot(options)], controllers: [Judges as Type] };
  const module = await Test.createTestingModule(metadata).compile();
  const quiet: NestApplicationOptions = { forceCloseConnections: true, logger: false };
  const app =
    adapter === 'express'
      ? module.createNestApplication(quiet)
      : module.createNestApplication(
          new FastifyAdapter(
            (adapter === 'fastify-http2'
              ? { http2: true, forceCloseConnections: false }
              : { forceCloseConnections: true }) as object,
          ),
          quiet,
        );
  app.use(pausing);
  await app.listen(0, '127.0.0.1');
  const { port } = (app.getHttpServer() as Server).address() as { port: number };
  return { app, port };
}
