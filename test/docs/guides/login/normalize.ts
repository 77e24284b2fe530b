// normalize.ts
import type { Normalize } from 'nestjs-syncguard';

/** For `SyncGuardModule.forRoot({ limit: { normalize } })`. */
export const normalize: Normalize = (_value, part, folded) =>
  // `folded` is the text that would count. With undefined it does.
  part === 'body.email' ? folded?.replace(/\+[^@]*@/, '@') : undefined;
