import 'reflect-metadata';
import { Inject } from '@nestjs/common';
import { NestFactory } from '@nestjs/core';
import { BudgetService, LockService } from 'nestjs-syncguard';
import { Completions, CompletionsModule, Llm } from './job-queue/completions.js';
import { FeedModule, Follower } from './leader/follower.js';

// An instance of the app of a guide. Says when it is at work, and is killed then.
const [guide = ''] = process.argv.slice(2);

// The bundler leaves out the types by which Nest injects.
Inject(LockService)(Follower, undefined, 0);
Inject(BudgetService)(Completions, undefined, 0);
Inject(Llm)(Completions, undefined, 1);

const atWork = (): boolean => process.stdout.write('at work\n');

const guides: Record<string, () => Promise<void>> = {
  async leader() {
    const app = await NestFactory.createApplicationContext(FeedModule, { logger: false });
    const follower = app.get(Follower);
    setInterval(() => follower.leads && atWork(), 10);
  },
  async 'job-queue'() {
    Llm.prototype.complete = () => new Promise(() => atWork());
    await NestFactory.createApplicationContext(CompletionsModule, { logger: false });
  },
};

void guides[guide]?.();
