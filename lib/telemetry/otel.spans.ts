import { SpanStatusCode, trace, type Tracer, type TracerProvider } from '@opentelemetry/api';
import type { SyncGuardEvent } from './telemetry.types.js';

/** Turns what lasted into spans, after the fact. Each is a child of the span that was active at the call, if that records. */
export class OtelSpans {
  readonly #tracer: Tracer;

  constructor(provider: TracerProvider | undefined) {
    this.#tracer = (provider ?? trace).getTracer('nestjs-syncguard');
  }

  record(event: SyncGuardEvent): void {
    const span = spanOf(event);
    if (!span || !trace.getActiveSpan()?.isRecording()) return;
    const { code, reason, keyHash } = event;
    const endMs = Date.now();
    const made = this.#tracer.startSpan(span.name, {
      startTime: endMs - span.ms,
      attributes: {
        ...(keyHash === undefined ? {} : { 'syncguard.key.hash': keyHash }),
        ...(code === undefined ? {} : { 'error.type': code }),
      },
    });
    if (event.result === 'fail') made.setStatus({ code: SpanStatusCode.ERROR, message: reason ?? code });
    made.end(endMs);
  }
}

/** A release that has failed is tried again, and a loss comes while the lock is still in use. So neither ends a hold. */
function spanOf(event: SyncGuardEvent): { readonly name: string; readonly ms: number } | undefined {
  const { feature, type, durationMs } = event;
  if (type === 'run') return { name: `syncguard.${feature}.body`, ms: durationMs };
  if (feature !== 'lock') return undefined;
  if (type === 'lock' && event.reason !== 'lost') return { name: 'syncguard.lock.wait', ms: durationMs };
  if ('heldMs' in event && event.heldMs !== undefined && event.code === undefined)
    return { name: 'syncguard.lock.hold', ms: event.heldMs };
  return undefined;
}
