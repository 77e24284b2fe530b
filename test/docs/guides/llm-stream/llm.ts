// llm.ts
import { Body, Controller, Injectable, Module, Post, StreamableFile } from '@nestjs/common';
import { SyncGuardModule, WithBudget } from 'nestjs-syncguard';
import { Readable } from 'node:stream';

type Ask = { user: string; prompt: string; maxTokens: number };
type Chunk = { text: string; tokens: number }; // Of the prompt, and of the answer up to here.

@Injectable()
export class Llm {
  @WithBudget({
    scopes: ({ user }: Ask) => [`user:${user}`],
    estimate: ({ prompt, maxTokens }: Ask) => prompt.length + maxTokens, // The most: reserved.
    actual: (last: Chunk) => last.tokens, // Of the last item that was read. The rest goes back.
  })
  async *stream({ prompt, maxTokens }: Ask): AsyncGenerator<Chunk, void, undefined> {
    let tokens = prompt.length; // Stands for your provider: each letter and each word is a token.
    for (let i = 1; i <= maxTokens; i++) yield { text: `word${i} `, tokens: ++tokens };
  }
}

@Controller('ai')
export class AiController {
  constructor(private readonly llm: Llm) {}

  @Post()
  async complete(@Body() ask: Ask) {
    const chunks = this.llm.stream(ask);
    const first = await chunks.next(); // Without room it throws here, in time for a 429.
    const text = Readable.from(textOf(first, chunks));
    text.once('close', () => void chunks.return()); // Who hangs up pays for what was sent.
    return new StreamableFile(text, { type: 'text/plain; charset=utf-8' });
  }
}

async function* textOf(first: IteratorResult<Chunk, void>, rest: AsyncGenerator<Chunk, void>) {
  if (!first.done) yield first.value.text;
  for await (const { text } of rest) yield text;
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
