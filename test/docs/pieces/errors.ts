import { type ArgumentsHost, Catch, type ExceptionFilter } from '@nestjs/common';
import { SyncGuardError, TooManyAttemptsError } from 'nestjs-syncguard';

export async function orCached<T>(fetch: () => Promise<T>, cached: T): Promise<T> {
  try {
    return await fetch();
  } catch (error) {
    if (error instanceof SyncGuardError && error.code === 'ServiceUnavailable') return cached;
    throw error;
  }
}

@Catch(TooManyAttemptsError)
export class SlowDown implements ExceptionFilter<TooManyAttemptsError> {
  catch(error: TooManyAttemptsError, host: ArgumentsHost): void {
    const response = host
      .switchToHttp()
      .getResponse<{ status(code: number): { json(body: object): void } }>();
    response.status(429).json({ code: error.code, retryAfterMs: error.retryAfterMs }); // and error.decision
  }
}
