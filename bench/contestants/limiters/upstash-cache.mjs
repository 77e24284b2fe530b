import { upstash } from './_upstash.mjs';

export default upstash('@upstash/ratelimit 2.2, ephemeralCache', () => new Map(), 'cache');
