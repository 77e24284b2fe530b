// llm.ts
import { Body, Controller, Injectable, Module, Post, StreamableFile } from '@nestjs/common';
import { currentHold, SyncGuardModule, WithBudget } from 'nestjs-syncguard';
import { Readable } from 'node:stream';

type Ask = { user: string; prompt: string; maxTokens: number };
type Chunk = { text: string; usage?: number };

/** Stands for yours, with `stream_options: { include_usage: true }`: usage comes last. */
async function* provider({ prompt, maxTokens }: Ask): AsyncGenerator<Chunk> {
  for (let i = 1; i <= maxTokens; i++) yield { text: `word${i} ` };
  yield { text: '', usage: prompt.length + maxTokens };
}

@Injectable()
export class Llm {
  @WithBudget({
    scopes: ({ user }: Ask) => [`user:${user}`],
    estimate: ({ prompt, maxTokens }: Ask) => prompt.length + maxTokens, // The most: reserved.
    actual: () => currentHold()?.returned as number, // The usage. The rest goes back.
  })
  async *stream(ask: Ask): AsyncGenerator<string, number, undefined> {
    currentHold()?.spent(ask.prompt.length); // Noted as it goes, for who leaves before the usage.
    for await (const { text, usage } of provider(ask)) {
      if (usage !== undefined) return usage;
      currentHold()?.spent(1);
      yield text;
    }
    throw new Error('The provider has ended without a usage.');
  }
}

@Controller('ai')
export class AiController {
  constructor(private readonly llm: Llm) {}

  @Post()
  async complete(@Body() ask: Ask) {
    const texts = this.llm.stream(ask);
    const first = await texts.next(); // Without room it throws here, in time for a 429.
    const text = Readable.from(textOf(first, texts));
    text.once('close', () => void texts.return(0)); // Who hangs up pays for what was sent.
    return new StreamableFile(text, { type: 'text/plain; charset=utf-8' });
  }
}

async function* textOf(first: IteratorResult<string>, rest: AsyncGenerator<string>) {
  if (!first.done) yield first.value;
  yield* rest;
}

const limits = [
  { scope: 'user', period: { every: 'month' as const }, limit: 1_000, thresholds: [80] },
];

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, budget: { limits } })],
  controllers: [AiController],
  providers: [Llm],
})
export class AiModule {}
