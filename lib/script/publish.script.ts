import { defineScript, unexpectedReply } from './define-script.js';

/**
 * publish: Tells processes something, or asks whether the ACL lets scripts publish, which is how those that wait learn of
 *   their turn.
 * KEYS: none
 * ARGV: channel, message ('' is heard as a sign of life only)
 * Reply: 1 or 0
 * Atomic: it is one command, which runs in a script because the ACL is asked there.
 */
export const publishScript = defineScript({
  name: 'publish',
  keys: [],
  args: ['channel', 'message'],
  lua: /* lua */ `return type(redis.pcall('PUBLISH', channel, message)) == 'number' and 1 or 0`,
  decode: (reply): boolean => reply === 1 || (reply === 0 ? false : unexpectedReply('publish', reply)),
});
