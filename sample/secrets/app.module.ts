import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';
import { Body, Controller, Get, GoneException, Header, HttpCode, Module, Param, Post } from '@nestjs/common';
import { hours, SecretService, SyncGuardModule } from 'nestjs-syncguard';

// Encrypted here, so that Redis never has the text. 32 bytes, the same in every process: openssl rand -base64 32
if (process.env.REDIS_URL && !process.env.SECRETS_KEY) throw new Error('Set SECRETS_KEY.');
const appKey = process.env.SECRETS_KEY ? Buffer.from(process.env.SECRETS_KEY, 'base64') : randomBytes(32);
if (appKey.length !== 32) throw new Error('SECRETS_KEY must be 32 bytes in base64.');
const keyOf = (id: string): Buffer => Buffer.from(hkdfSync('sha256', appKey, id, 'secret', 32));

function seal(id: string, text: string): Buffer {
  const iv = randomBytes(12);
  const cipher = createCipheriv('aes-256-gcm', keyOf(id), iv);
  return Buffer.concat([iv, cipher.update(text, 'utf8'), cipher.final(), cipher.getAuthTag()]);
}

function open(id: string, sealed: Buffer): string {
  const decipher = createDecipheriv('aes-256-gcm', keyOf(id), sealed.subarray(0, 12));
  decipher.setAuthTag(sealed.subarray(-16));
  return Buffer.concat([decipher.update(sealed.subarray(12, -16)), decipher.final()]).toString('utf8');
}

@Controller('secrets')
export class SecretsController {
  constructor(private readonly secrets: SecretService) {}

  @Post()
  async create(@Body('text') text: string) {
    const id = randomBytes(16).toString('base64url'); // in the link alone: SyncGuard stores its hash
    await this.secrets.create({ id, payload: seal(id, text), views: 1, ttlMs: hours(1) });
    return { url: `/secrets/${id}` };
  }

  /** Link previews send GET: it costs no view. */
  @Get(':id')
  peek(@Param('id') id: string) {
    return this.secrets.peek(id);
  }

  @Post(':id/reveal')
  @HttpCode(200)
  @Header('Cache-Control', 'no-store')
  async reveal(@Param('id') id: string) {
    const secret = await this.secrets.view(id);
    if (!secret.ok) throw new GoneException(`The secret is ${secret.reason}.`);
    return { text: open(id, Buffer.from(secret.payload)) };
  }
}

@Module({
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })], // without it: in the memory of this process
  controllers: [SecretsController],
})
export class AppModule {}
