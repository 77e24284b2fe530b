import type { INestApplication, LogLevel } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { FastifyAdapter } from '@nestjs/platform-fastify';
import { AppModule, type AppOptions } from './app.module.js';

/** Only warnings and errors, so that the line with the address is easy to see. */
export const LOG_LEVELS: LogLevel[] = ['warn', 'error', 'fatal'];

export interface SampleOptions extends AppOptions {
  adapter?: 'express' | 'fastify';
  /** The levels of the log. Default: warnings and errors. */
  logger?: LogLevel[] | false;
}

/** Creates the whole app for main.ts and for tests. It does not listen yet. */
export async function createApp({
  adapter = 'express',
  logger = LOG_LEVELS,
  ...options
}: SampleOptions): Promise<INestApplication> {
  const module = AppModule.with(options);
  const settings = { logger, abortOnError: false };
  return adapter === 'fastify'
    ? NestFactory.create(module, new FastifyAdapter(), settings)
    : NestFactory.create(module, settings);
}
