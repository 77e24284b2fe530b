import { defineScript, unexpectedReply } from './define-script.js';

/**
 * publish: Asks whether the ACL lets scripts publish, which is how those that wait learn of their turn.
 * KEYS: none
 * ARGV: channel
 * Reply: 1 or 0
 * Atomic: it is one command, which runs in a script because the ACL is asked there.
 */
export const publishScript = defineScript({
  name: 'publish',
  keys: [],
  args: ['channel'],
  lua: /* lua */ `return type(redis.pcall('PUBLISH', channel, '')) == 'number' and 1 or 0`,
  decode: (reply): boolean => reply === 1 || (reply === 0 ? false : unexpectedReply('publish', reply)),
});
