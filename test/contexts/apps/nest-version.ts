import { readFileSync } from 'node:fs';

/** 11 or 12: what this jest project maps `@nestjs/*` to. */
export const NEST_VERSION = Number.parseInt(
  (JSON.parse(readFileSync(require.resolve('@nestjs/core/package.json'), 'utf8')) as { version: string })
    .version,
  10,
);
