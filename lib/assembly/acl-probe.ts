import { checkCommands } from '../limit/redis/check.script.js';
import { commandsOf, defineScript, unexpectedReply } from '../script/define-script.js';
import { allScripts } from './all-scripts.js';

/** The command that scripts can do without. Its refusal has a warning of its own, `REDIS_NO_PUBSUB`. */
const DISPENSABLE = 'PUBLISH';

/** Returns the commands of Redis that our scripts cannot do without, in the order of the alphabet. */
export function neededCommands(): string[] {
  const commands = new Set([...allScripts.flatMap(({ lua }) => commandsOf(lua)), ...checkCommands()]);
  commands.delete(DISPENSABLE);
  return [...commands].sort();
}

/**
 * acl: Asks which of our commands the ACL forbids. A refusal inside a script does not name its command before Redis 7.2.
 * Each command is tried on a scratch key, with as many arguments as it wants. What else the server has against it (a full
 * memory, a replica) is not asked here.
 * KEYS: scratch
 * ARGV: commands, joined by ' '
 * Reply: the commands that the ACL forbids. It is SET alone where it forbids that, as no other may be tried without a TTL.
 * Atomic: the scratch key is of one probe, and none is left behind.
 */
export const aclScript = defineScript({
  name: 'acl',
  keys: ['scratch'],
  args: ['commands'],
  lua: /* lua */ `
local function isForbidden(reply)
  local fault = type(reply) == 'table' and reply.err or ''
  return string.find(fault, "can't run this command", 1, true) or string.find(fault, 'no permissions to run', 1, true)
end
local forbidden = {}
for command in string.gmatch(commands, '%S+') do
  if isForbidden(redis.pcall('SET', scratch, '1', 'PX', 1000)) then return {'SET'} end
  local args, reply = {}
  repeat
    reply = redis.pcall(command, unpack(args))
    args[#args + 1] = #args == 0 and scratch or '1'
  until #args > 6 or type(reply) ~= 'table' or not string.find(reply.err or '', 'rong number of arg', 1, true)
  if isForbidden(reply) then forbidden[#forbidden + 1] = command end
end
redis.pcall('SET', scratch, '1', 'PX', 1000)
redis.pcall('DEL', scratch)
return forbidden`,
  decode(reply): string[] {
    const isList = Array.isArray(reply) && reply.every((each) => typeof each === 'string');
    return isList ? reply : unexpectedReply('acl', reply);
  },
});
