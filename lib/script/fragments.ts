/** Sets `nowMs`: the server's clock in ms, the only clock that decisions use. */
export const NOW_MS = `
local time = redis.call('TIME')
local nowMs = time[1] * 1000 + math.floor(time[2] / 1000)`;
