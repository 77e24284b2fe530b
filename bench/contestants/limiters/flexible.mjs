import { rateLimiterFlexible } from './_flexible.mjs';

export default rateLimiterFlexible('rate-limiter-flexible 11', 'rl', () => ({}));
