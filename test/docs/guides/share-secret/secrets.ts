// secrets.ts
import { Body, Controller, Get, GoneException, Header, HttpCode, Module } from '@nestjs/common';
import { NotFoundException, Param, Post } from '@nestjs/common';
import { days, SecretService, SyncGuardModule } from 'nestjs-syncguard';
import { createCipheriv, createDecipheriv, randomBytes } from 'node:crypto';

// Start all instances with the same: `SEAL_KEY=$(openssl rand -hex 32)`. Keep it out of Redis.
const KEY = Buffer.from(process.env.SEAL_KEY ?? '', 'hex');
if (KEY.length !== 32) throw new Error('SEAL_KEY must be 64 hex digits.');
function seal(text: string): Buffer {
  const iv = randomBytes(12);
  const cipher = createCipheriv('aes-256-gcm', KEY, iv);
  return Buffer.concat([iv, cipher.update(text), cipher.final(), cipher.getAuthTag()]);
}

function open(sealed: Buffer): string {
  const decipher = createDecipheriv('aes-256-gcm', KEY, sealed.subarray(0, 12));
  decipher.setAuthTag(sealed.subarray(-16));
  return Buffer.concat([decipher.update(sealed.subarray(12, -16)), decipher.final()]).toString();
}

@Controller('secrets')
export class SecretsController {
  constructor(private readonly secrets: SecretService) {}

  @Post()
  async create(@Body('text') text: string) {
    const secret = { payload: seal(text), views: 1, ttlMs: days(7) };
    const { id, receipt } = await this.secrets.create(secret);
    return { link: `/secrets/${id}`, receipt }; // The receipt is the sender's. It opens nothing.
  }

  @Get(':id') // The link, for a page with a button. Chat programs fetch it, so it opens nothing.
  peek(@Param('id') id: string) {
    return this.secrets.peek(id);
  }

  @Post(':id/reveal') // The button.
  @HttpCode(200)
  @Header('Cache-Control', 'no-store')
  async reveal(@Param('id') id: string) {
    const secret = await this.secrets.view(id);
    if (secret.ok) return { text: open(Buffer.from(secret.payload)) };
    throw secret.reason === 'not_found'
      ? new NotFoundException()
      : new GoneException(secret.reason);
  }

  @Get('status/:receipt')
  status(@Param('receipt') receipt: string) {
    return this.secrets.status(receipt);
  }
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL })],
  controllers: [SecretsController],
})
export class SecretsModule {}
