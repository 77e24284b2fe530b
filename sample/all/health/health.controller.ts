import { Controller, Get, HttpStatus, Res } from '@nestjs/common';
import { SkipRateLimit, type SyncGuardHealth, SyncGuardHealthIndicator } from 'nestjs-syncguard';

@Controller('health')
export class HealthController {
  constructor(private readonly syncguard: SyncGuardHealthIndicator) {}

  /** 200, or 503 when Redis does not answer. Load balancers read the status, and people read the body. */
  @Get()
  @SkipRateLimit()
  async health(
    @Res({ passthrough: true }) response: { status(code: number): unknown },
  ): Promise<{ status: 'ok' | 'error'; details: SyncGuardHealth }> {
    const details = await this.syncguard.isHealthy();
    const healthy = Object.values(details).every(({ status }) => status === 'up');
    response.status(healthy ? HttpStatus.OK : HttpStatus.SERVICE_UNAVAILABLE);
    return { status: healthy ? 'ok' : 'error', details };
  }
}
