import { type ArgumentsHost, Catch, Controller, Get, type INestApplication, Param } from '@nestjs/common';
import { BaseExceptionFilter, HttpAdapterHost } from '@nestjs/core';
import { HangUp, SyncGuardModule, toHttpException, WithLock } from 'nestjs-syncguard';

const report: (error: unknown) => void = () => {};

@Catch()
class EveryError extends BaseExceptionFilter {
  override catch(error: unknown, host: ArgumentsHost): void {
    report(error);
    super.catch(toHttpException(error), host); // ours as an HttpException with the body above, any other as it is
  }
}

export const setUp = (app: INestApplication) => {
  SyncGuardModule.forRoot({ http: false });
  app.useGlobalFilters(new EveryError(app.get(HttpAdapterHost).httpAdapter));
};

@Controller()
export class ReportController {
  private readonly llm = { summary: async (id: string, _options: { signal: AbortSignal }) => id };

  @Get('report/:id')
  @WithLock('report:{0}')
  async report(@Param('id') id: string, @HangUp() gone: AbortSignal) {
    try {
      return await this.llm.summary(id, { signal: gone });
    } catch (error) {
      if (!gone.aborted) throw error; // of one that is gone Nest would log an ERROR, and nobody reads the answer
    }
  }
}
