import type { MeterProvider, TracerProvider } from '@opentelemetry/api';
import { invalidOption, knownOptions } from '../core/validate.js';
import { OtelMetrics } from './otel.metrics.js';
import { OtelSpans } from './otel.spans.js';
import type { SyncGuardEvent } from './telemetry.types.js';

/** Options of {@link instrument}. */
export interface InstrumentOptions {
  /**
   * Where the metrics go. Default: the provider that is registered with `@opentelemetry/api`, also if it is registered or replaced
   * later. Without any there are none.
   */
  meterProvider?: MeterProvider;
  /** Where the spans go. Default: the provider that is registered with `@opentelemetry/api`, also later. Without any there are none. */
  tracerProvider?: TracerProvider;
}

/**
 * Returns a listener for `telemetry.onEvent` that turns events into metrics and spans of OpenTelemetry. No key is an attribute of
 * a metric, and each attribute has at most 100 values; further ones are `other`. Spans are made where a span is active that
 * records.
 *
 * @throws SyncGuardConfigError when a provider is none
 * @example
 * SyncGuardModule.forRoot({ telemetry: { onEvent: instrument() } });
 */
export function instrument(options: InstrumentOptions = {}): (event: SyncGuardEvent) => void {
  const given = knownOptions('instrument', options, ['meterProvider', 'tracerProvider']);
  const { meterProvider, tracerProvider } = given as InstrumentOptions;
  if (meterProvider !== undefined && typeof meterProvider?.getMeter !== 'function')
    throw invalidOption('meterProvider', 'a MeterProvider of OpenTelemetry', meterProvider);
  if (tracerProvider !== undefined && typeof tracerProvider?.getTracer !== 'function')
    throw invalidOption('tracerProvider', 'a TracerProvider of OpenTelemetry', tracerProvider);
  const metrics = new OtelMetrics(meterProvider);
  const spans = new OtelSpans(tracerProvider);
  return (event) => {
    metrics.record(event);
    spans.record(event);
  };
}
