import type { SyncGuardErrorInit } from './errors.js';

type FeatureError = new (init: SyncGuardErrorInit<'Aborted' | 'InvalidArgument'>) => Error;

/**
 * Throws if the signal of a call is malformed or has aborted already. Memory backends call this before they do
 * anything. The script runner does the same before it sends.
 */
export function refuseAborted(signal: AbortSignal | undefined, FeatureError: FeatureError): void {
  if (!signal) return;
  if (typeof signal.addEventListener !== 'function')
    throw new FeatureError({ code: 'InvalidArgument', message: 'signal must be an AbortSignal.' });
  if (signal.aborted)
    throw new FeatureError({
      code: 'Aborted',
      message: 'The call was aborted by its signal.',
      cause: signal.reason,
    });
}
