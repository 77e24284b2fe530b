-- 1,000 clients, told apart by a header. Their requests are written once, before the measurement.
local requests, last = {}, 0
init = function()
  for client = 1, 1000 do
    local address = '10.0.' .. math.floor(client / 250) .. '.' .. (client % 250)
    requests[client] = wrk.format('GET', '/hello', { ['x-client'] = address })
  end
end
request = function()
  last = last % 1000 + 1
  return requests[last]
end
