// observed.ts
import { Logger, Module } from '@nestjs/common';
import { type SyncGuardEvent, SyncGuardModule } from 'nestjs-syncguard';

/** Stands for a counter of prom-client or OpenTelemetry with these labels. */
export const operations = new Map<string, number>();

const logger = new Logger('SyncGuard');
const ALARMS = [
  'lock lost',
  'lock overtaken',
  'budget expired',
  'budget unreadable',
  'budget threshold',
];

export function onEvent(event: SyncGuardEvent): void {
  const { feature, type, result, reason, code, keyHash = '' } = event;
  const labels = [feature, type, result, reason ?? code ?? ''].join(' ').trim();
  operations.set(labels, (operations.get(labels) ?? 0) + 1);

  const isFault =
    code !== undefined && code !== 'AcquisitionTimeout' && code !== 'InvalidArgument';
  if (isFault || ALARMS.includes(`${feature} ${reason ?? type}`))
    logger.warn(`${labels} ${keyHash}`);
}

@Module({
  // Once, in your root module, with the options of all features.
  imports: [SyncGuardModule.forRoot({ redis: process.env.REDIS_URL, telemetry: { onEvent } })],
})
export class ObservedModule {}
