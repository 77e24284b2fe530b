/** Lua that sets `nowMs`, the server's clock in ms, and `time`, the reply of TIME. No script decides by another clock. */
export const NOW_MS = `
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)`;
