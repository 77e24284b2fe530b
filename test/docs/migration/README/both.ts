// both.ts
import { type LockService } from 'nestjs-syncguard';
import type Redlock from 'redlock';

/** For one release: excludes instances of the last release and of the next. */
export const underBoth = <T>(
  redlock: Redlock,
  locks: LockService,
  key: string,
  body: () => Promise<T>,
): Promise<T> => redlock.using([key], 30_000, () => locks.lock(body, { key }));
