import {
  BadRequestException,
  Body,
  Controller,
  Get,
  HttpCode,
  HttpStatus,
  Injectable,
  type PipeTransform,
  Post,
  Query,
} from '@nestjs/common';
import type { Balance } from 'nestjs-syncguard';
import { AiService } from './ai.service.js';
import type { Completion } from './fake-model.js';

const MAX_PROMPT_LENGTH = 2_000;
const MAX_TOKENS = 4_000;

interface Question {
  user: string;
  prompt: string;
  maxTokens: number;
}

// A real app takes the user from the session, so that nobody can spend the budget of another user.
@Injectable()
class UserPipe implements PipeTransform<unknown, string> {
  transform(user: unknown): string {
    if (typeof user === 'string' && /^[\w-]{1,64}$/.test(user)) return user;
    throw new BadRequestException('user must be 1 to 64 letters, digits, "_" or "-".');
  }
}

@Injectable()
class QuestionPipe implements PipeTransform<unknown, Question> {
  transform(body: unknown): Question {
    const { user, prompt, maxTokens } = Object(body) as Record<string, unknown>;
    if (typeof prompt !== 'string' || prompt === '' || prompt.length > MAX_PROMPT_LENGTH)
      throw new BadRequestException(`prompt must be a string of 1 to ${MAX_PROMPT_LENGTH} characters.`);
    if (!Number.isInteger(maxTokens) || Number(maxTokens) < 1 || Number(maxTokens) > MAX_TOKENS)
      throw new BadRequestException(`maxTokens must be an integer from 1 to ${MAX_TOKENS}.`);
    return { user: new UserPipe().transform(user), prompt, maxTokens: Number(maxTokens) };
  }
}

@Controller('ai')
export class AiController {
  constructor(private readonly ai: AiService) {}

  /**
   * - 200: the model has answered.
   * - 429: a limit is used up until the next day or month. The body shows which limit.
   * - 402: the request exceeds the limit of a whole day or month, so waiting does not help.
   * - 503: Redis cannot be reached. The model is not called.
   */
  @Post('complete')
  @HttpCode(HttpStatus.OK)
  async complete(
    @Body(QuestionPipe) { user, prompt, maxTokens }: Question,
  ): Promise<Completion & { budget: Balance[] }> {
    const completion = await this.ai.complete(user, prompt, maxTokens);
    return { ...completion, budget: await this.ai.budgetOf(user) };
  }

  /** Returns what is spent, reserved by running requests, and available. */
  @Get('budget')
  async budget(@Query('user', UserPipe) user: string): Promise<{ budget: Balance[] }> {
    return { budget: await this.ai.budgetOf(user) };
  }
}
