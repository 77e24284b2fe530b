// llm.ts
import { Body, Controller, Injectable, Module, Post, StreamableFile } from '@nestjs/common';
import { SyncGuardModule, WithBudget } from 'nestjs-syncguard';
import { Readable } from 'node:stream';

export interface Ask {
  user: string;
  prompt: string;
  maxTokens: number;
}
interface Chunk {
  text: string;
  tokens: number; // Of the whole answer up to here, with the prompt.
}

@Injectable()
export class Llm {
  @WithBudget({
    scopes: ({ user }: Ask) => [`user:${user}`],
    // An upper bound, reserved with the first item.
    estimate: ({ prompt, maxTokens }: Ask) => prompt.length + maxTokens,
    // Of the last item that was read. The rest goes back.
    actual: (last: Chunk) => last.tokens,
  })
  async *stream({ prompt, maxTokens }: Ask): AsyncGenerator<Chunk, void, undefined> {
    let tokens = prompt.length; // Stands for your provider: a letter that is asked is a token, and a word that is answered.
    for (let i = 1; i <= maxTokens; i++) yield { text: `word${i} `, tokens: ++tokens };
  }
}

@Controller('ai')
export class AiController {
  constructor(private readonly llm: Llm) {}

  @Post()
  async complete(@Body() ask: Ask): Promise<StreamableFile> {
    const chunks = this.llm.stream(ask);
    const first = await chunks.next(); // Without room it throws here, where the answer can still be a 429.
    const text = Readable.from(textOf(first, chunks));
    // Its client may have hung up by now, or may do so: it pays for what it got.
    text.once('close', () => void chunks.return());
    return new StreamableFile(text, { type: 'text/plain; charset=utf-8' });
  }
}

async function* textOf(
  first: IteratorResult<Chunk, void>,
  rest: AsyncGenerator<Chunk, void>,
): AsyncGenerator<string> {
  if (!first.done) yield first.value.text;
  for await (const { text } of rest) yield text;
}

@Module({
  imports: [
    // Once, in your root module, with the options of all features.
    SyncGuardModule.forRoot({
      redis: process.env.REDIS_URL,
      budget: { limits: [{ scope: 'user', period: { every: 'month' }, limit: 1_000, thresholds: [80] }] },
    }),
  ],
  controllers: [AiController],
  providers: [Llm],
})
export class AiModule {}
