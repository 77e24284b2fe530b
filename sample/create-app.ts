import type { INestApplication, LogLevel } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { AppModule } from './app.module.js';

/** So that the line with the address stands out. */
export const LOG_LEVELS: LogLevel[] = ['warn', 'error', 'fatal'];

export interface SampleOptions {
  /** Where Redis is. Default: none, everything stays in this process. */
  redisUrl?: string;
  adapter?: 'express' | 'fastify';
  /** What secrets are encrypted with: 32 bytes in base64. */
  secretsKey?: string;
  /** What is logged. Default: warnings and errors. */
  logger?: LogLevel[] | false;
}

/** The whole app, not listening yet: for main.ts and for tests. */
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
