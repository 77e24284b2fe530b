import { rateLimiterFlexible } from './_flexible.mjs';

const inMemory = (limit) => ({ inMemoryBlockOnConsumed: limit + 1, inMemoryBlockDuration: 60 });

export default rateLimiterFlexible('rate-limiter-flexible 11, inMemoryBlock', 'rm', inMemory, 'cache');
