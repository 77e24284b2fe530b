import { setTimeout as sleep } from 'node:timers/promises';
import { Injectable } from '@nestjs/common';

const SHARE_USED = 0.6;

export interface Completion {
  text: string;
  /** In tokens. */
  usage: { prompt: number; completion: number; total: number };
}

/** Stands for the client of a provider. It takes some time, and uses fewer tokens than it may. */
@Injectable()
export class FakeModel {
  /** Long enough to see the reservation while the model runs. Tests set it to 0. */
  answerMs = 300;

  async complete(prompt: string, maxTokens: number): Promise<Completion> {
    await sleep(this.answerMs);
    const used = { prompt: countTokens(prompt), completion: Math.ceil(maxTokens * SHARE_USED) };
    return {
      text: `A good question: it has ${prompt.length} characters.`,
      usage: { ...used, total: used.prompt + used.completion },
    };
  }
}

/** About four characters are a token. A real app calls the tokenizer of the provider. */
export const countTokens = (text: string): number => Math.ceil(text.length / 4);
