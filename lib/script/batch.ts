import { commandOf, type LuaCommand, type Script, type ScriptArg } from './define-script.js';

/** The most calls of a batch. The server runs nothing else meanwhile, so a batch stays as short as one slow command. */
const MOST_CALLS = 32;

/** The largest batch, in characters. A larger call is sent alone. */
const MOST_CHARS = 65_536;

/** What a batch needs of a call. */
interface BatchedCall {
  readonly script: Script;
  /** The keys and then the arguments, in the order of the script. */
  readonly keysAndArgs: readonly ScriptArg[];
}

const batches = new WeakMap<Script, LuaCommand>();

/** Returns the script that runs several calls of `script`. It replies one reply for each call, in order. */
export function batchOf(script: Script): LuaCommand {
  let batch = batches.get(script);
  if (!batch) {
    const lua = luaOf(script);
    const command = commandOf(`${script.name}:batch`, lua);
    batches.set(script, (batch = { command, lua, binary: script.binary, numberOfKeys: undefined }));
  }
  return batch;
}

/** Returns the number of all keys, the keys of each call, the number of calls, and the other arguments of each. */
export function batchArgs(calls: readonly BatchedCall[]): ScriptArg[] {
  const numberOfKeys = calls[0]?.script.numberOfKeys ?? 0;
  const all: ScriptArg[] = [calls.length * numberOfKeys];
  for (const { keysAndArgs } of calls)
    for (let i = 0; i < numberOfKeys; i++) all.push(keysAndArgs[i] as ScriptArg);
  all.push(calls.length);
  for (const { keysAndArgs } of calls)
    for (let i = numberOfKeys; i < keysAndArgs.length; i++) all.push(keysAndArgs[i] as ScriptArg);
  return all;
}

/**
 * An error of one call, such as a key of another type, is the reply to that call, and the others run. Only a replica fails
 * the whole batch: it has written nothing, and ioredis' `reconnectOnError` does not look into arrays.
 */
function luaOf({ lua, keys, args }: Script): string {
  const [keysName, argsName] = ['KEYS', 'ARGV'].map((name) => (lua.includes(name) ? name : '_'));
  const slice = (count: number, from: number): string =>
    `call * ${count} + ${from}, call * ${count} + ${from + count - 1}`;
  return `
local function one(${keysName}, ${argsName})
${lua}
end
local replies = {}
for call = 0, ARGV[1] - 1 do
  local keys = {unpack(KEYS, ${slice(keys.length, 1)})}
  local args = {unpack(ARGV, ${slice(args.length, 2)})}
  local ok, reply = pcall(one, keys, args)
  if not ok then
    local message = type(reply) == 'table' and reply.err or tostring(reply)
    reply = {err = message}
    if string.find(message, 'READONLY', 1, true) then return reply end
  end
  replies[call + 1] = reply or false
end
return replies
`;
}

/** Splits calls into batches of one script each. Their order stays, so a batch ends where another script comes. */
export function inBatches<Call extends BatchedCall>(calls: readonly Call[]): Call[][] {
  const batches: Call[][] = [];
  let batch: Call[] = [];
  let chars = 0;
  for (const call of calls) {
    const more = charsOf(call);
    const fits = batch.length < MOST_CALLS && chars + more <= MOST_CHARS;
    if (fits && batch[0]?.script === call.script && !call.script.alone) {
      batch.push(call);
      chars += more;
    } else {
      batches.push((batch = [call]));
      chars = more;
    }
  }
  return batches;
}

function charsOf({ keysAndArgs }: BatchedCall): number {
  let chars = 0;
  for (const each of keysAndArgs) if (typeof each === 'string' || Buffer.isBuffer(each)) chars += each.length;
  return chars;
}
