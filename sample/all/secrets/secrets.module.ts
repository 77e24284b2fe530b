import { createHash, randomBytes } from 'node:crypto';
import { type DynamicModule, Logger, Module } from '@nestjs/common';
import { Sealer } from './sealer.js';
import { SecretsController } from './secrets.controller.js';
import { SecretsService } from './secrets.service.js';

const KEY_BYTES = 32;

export interface SecretsModuleOptions {
  redisUrl?: string;
  /** 32 bytes in base64. Required with Redis, where all processes need the same key. */
  secretsKey?: string;
}

@Module({ controllers: [SecretsController], providers: [SecretsService] })
export class SecretsModule {
  static with(options: SecretsModuleOptions): DynamicModule {
    // Created before anything is opened, so that a wrong key leaves no half-started app behind.
    const sealer = new Sealer(keyOf(options));
    return { module: SecretsModule, providers: [{ provide: Sealer, useValue: sealer }] };
  }
}

function keyOf({ redisUrl, secretsKey }: SecretsModuleOptions): Buffer {
  if (secretsKey) return parseKey(secretsKey);
  if (!redisUrl) return randomBytes(KEY_BYTES);
  const advice = `Set SECRETS_KEY to the same ${KEY_BYTES} bytes in all processes: openssl rand -base64 ${KEY_BYTES}`;
  if (process.env.NODE_ENV === 'production') throw new Error(`There is no key for the secrets. ${advice}`);
  new Logger('Secrets').warn(`Secrets are encrypted with a key that everybody knows. ${advice}`);
  return createHash('sha256').update('the sample of nestjs-syncguard').digest();
}

function parseKey(base64: string): Buffer {
  const key = Buffer.from(base64, 'base64');
  if (key.length === KEY_BYTES) return key;
  throw new Error(`SECRETS_KEY must be ${KEY_BYTES} bytes in base64: openssl rand -base64 ${KEY_BYTES}`);
}
