import type { SyncGuardErrorInit } from './syncguard.errors.js';

type FeatureError = new (init: SyncGuardErrorInit<'Aborted' | 'InvalidArgument'>) => Error;

/** What a memory backend asks before it does anything, as the runner does before it sends. */
export function refuseAborted(signal: AbortSignal | undefined, FeatureError: FeatureError): void {
  if (!signal) return;
  if (typeof signal.addEventListener !== 'function')
    throw new FeatureError({ code: 'InvalidArgument', message: 'signal must be an AbortSignal.' });
  if (signal.aborted)
    throw new FeatureError({
      code: 'Aborted',
      message: 'The operation was aborted by its signal.',
      cause: signal.reason,
    });
}
