// tries-left.ts
import { Body, Controller, type ExecutionContext, Post, UnauthorizedException } from '@nestjs/common';
import { type DeniedDecision, Limited, type LimitedDecision, minutes, RateLimit } from 'nestjs-syncguard';

const problem = ({ retryAfterSecs }: DeniedDecision, context: ExecutionContext) => {
  const response = context.switchToHttp().getResponse<{ header(name: string, value: string): void }>();
  response.header('content-type', 'application/problem+json');
  return { type: 'https://example.org/locked', title: 'Locked', status: 429, retryAfterSecs };
};

@Controller('door')
export class DoorController {
  @Post()
  @RateLimit({
    name: 'door',
    count: 'failure',
    temp: { windowMs: minutes(15), limit: 3, blockMs: minutes(15) },
    message: problem,
  })
  open(@Body('pin') pin: string, @Limited() limited: LimitedDecision) {
    if (pin === '1234') return 'open';
    throw new UnauthorizedException(`Wrong. You have ${limited.remaining} tries left.`);
  }
}
