import type { INestApplication, LogLevel } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { AppModule } from './app.module.js';

/** Only warnings and errors, so that the line with the address is easy to see. */
export const LOG_LEVELS: LogLevel[] = ['warn', 'error', 'fatal'];

export interface SampleOptions {
  /** The address of Redis. Default: none, everything stays in this process. */
  redisUrl?: string;
  adapter?: 'express' | 'fastify';
  /** The key that encrypts secrets: 32 bytes in base64. */
  secretsKey?: string;
  /** The levels of the log. Default: warnings and errors. */
  logger?: LogLevel[] | false;
}

/** Creates the whole app for main.ts and for tests. It does not listen yet. */
export async function createApp({
  redisUrl,
  adapter = 'express',
  secretsKey,
  logger = LOG_LEVELS,
}: SampleOptions = {}): Promise<INestApplication> {
  const module = AppModule.with({ redisUrl, secretsKey });
  const options = { logger, abortOnError: false };
  return adapter === 'fastify'
    ? NestFactory.create(module, new FastifyAdapter(), options)
    : NestFactory.create(module, options);
}
