import {
  BadRequestException,
  Body,
  Controller,
  Get,
  GoneException,
  Header,
  Headers,
  HttpCode,
  HttpException,
  HttpStatus,
  Injectable,
  NotFoundException,
  Param,
  type PipeTransform,
  Post,
  Res,
} from '@nestjs/common';
import { CONTENT_SECURITY_POLICY, renderPage } from '../page/page.html.js';
import { type NewSecret, SecretsService } from './secrets.service.js';

const MAX_TEXT_BYTES = 20_000;
const MAX_VIEWS = 100;
const DAY_MS = 86_400_000;
const MAX_TTL_MS = 30 * DAY_MS;

/** A malformed id gets the same answer as an id that does not exist. */
@Injectable()
class SecretIdPipe implements PipeTransform<string, string> {
  transform(id: string): string {
    if (/^[\w-]{22}$/.test(id)) return id;
    throw new NotFoundException('There is no such secret.');
  }
}

@Injectable()
class NewSecretPipe implements PipeTransform<unknown, NewSecret> {
  transform(body: unknown): NewSecret {
    const { text, views = 1, ttlMs = DAY_MS } = Object(body) as Record<string, unknown>;
    if (
      typeof text !== 'string' ||
      text === '' ||
      !text.isWellFormed() ||
      Buffer.byteLength(text) > MAX_TEXT_BYTES
    )
      throw new BadRequestException(`text must be a string of 1 to ${MAX_TEXT_BYTES} bytes.`);
    return {
      text,
      views: integer('views', views, MAX_VIEWS),
      ttlMs: integer('ttlMs', ttlMs, MAX_TTL_MS),
    };
  }
}

function integer(name: string, value: unknown, max: number): number {
  if (Number.isInteger(value) && (value as number) >= 1 && (value as number) <= max) return value as number;
  throw new BadRequestException(`${name} must be an integer from 1 to ${max}.`);
}

interface HttpResponse {
  status(code: number): unknown;
  header(name: string, value: string): unknown;
}

@Controller('secrets')
export class SecretsController {
  constructor(private readonly secrets: SecretsService) {}

  /** 201: the link. By default the secret opens once and lives for a day. */
  @Post()
  @Header('Cache-Control', 'no-store')
  async create(
    @Body(NewSecretPipe) secret: NewSecret,
    @Headers('host') host: string,
  ): Promise<{ id: string; url: string }> {
    const id = await this.secrets.create(secret);
    return { id, url: `http://${host}/secrets/${id}` };
  }

  /**
   * The address of the link. It reports whether the secret is there, and never shows it. Link previews,
   * crawlers and mail scanners send GET and HEAD, so these cost no view. A browser gets the page with the
   * button that sends the POST.
   */
  @Get(':id')
  @Header('Cache-Control', 'no-store')
  @Header('Referrer-Policy', 'no-referrer')
  @Header('Vary', 'Accept')
  async peek(
    @Param('id', SecretIdPipe) id: string,
    @Headers() { accept = '', host = '' }: { accept?: string; host?: string },
    @Res({ passthrough: true }) response: HttpResponse,
  ): Promise<unknown> {
    const secret = await this.secrets.peek(id);
    if (accept.includes('text/html')) {
      response.status(secret.ok ? HttpStatus.OK : statusOf(secret.reason));
      response.header('Content-Type', 'text/html; charset=utf-8');
      response.header('Content-Security-Policy', CONTENT_SECURITY_POLICY);
      return renderPage(`http://${host}`);
    }
    if (!secret.ok) throw notShown(secret.reason);
    const { viewsRemaining, expiresAtMs } = secret;
    return { id, viewsRemaining, expiresAtMs };
  }

  /** 200: the text, and one view less. 404: there is no such secret. 410: the secret is burned or expired. */
  @Post(':id/reveal')
  @HttpCode(HttpStatus.OK)
  @Header('Cache-Control', 'no-store')
  async reveal(
    @Param('id', SecretIdPipe) id: string,
  ): Promise<{ text: string; viewsRemaining: number | null; burned: boolean }> {
    const secret = await this.secrets.reveal(id);
    if (!secret.ok) throw notShown(secret.reason);
    const { text, viewsRemaining, burned } = secret;
    return { text, viewsRemaining, burned };
  }
}

const statusOf = (reason: string): HttpStatus =>
  reason === 'not_found' ? HttpStatus.NOT_FOUND : HttpStatus.GONE;

function notShown(reason: string): HttpException {
  return statusOf(reason) === HttpStatus.NOT_FOUND
    ? new NotFoundException('There is no such secret.')
    : new GoneException(`The secret is ${reason}.`);
}
