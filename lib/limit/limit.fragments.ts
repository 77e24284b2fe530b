// Lua that several scripts of the limiter share. Fragments rather than Lua functions: a function costs its making in
// every run of a script. `call` is a local of each script: `redis.call` is looked up twice.

/** A fragment's lines as deep as the place where it stands. */
export function indent(lua: string, by: number): string {
  return lua.trim().replaceAll('\n', `\n${' '.repeat(by)}`);
}

/** `nowMs` by the server's clock, asked once for all limits of a call. */
export const NOW_MS_ONCE = `
if not nowMs then
  local time = call('TIME')
  nowMs = time[1] * 1000 + math.floor(time[2] / 1000)
end`;

/**
 * Returns `answer` if a block stands: `held` is its value, `remainingMs` what is left of it. Of one that lost its TTL
 * that is the whole of it, and `heal` is what is to be done.
 */
export const answerBlock = (answer: string, ...heal: string[]): string => `
if held then
  local remainingMs = call('PTTL', block)
  if remainingMs < 0 then
    ${[
      `remainingMs = tonumber(string.match(held, '^%a+ %d+ %d+ (%d+)'))`,
      `if not remainingMs then error('SYNCGUARD_FOREIGN the block is not a block', 0) end`,
      ...heal,
    ].join('\n    ')}
  end
  if remainingMs > 0 then return ${answer} end
end`;
