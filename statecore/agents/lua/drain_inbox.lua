-- Apply what waits in an agent's inbox, in order, in the same atom that takes it out.
-- An event whose predecessors are still on their way keeps its place for a while; nobody waits for an answer here,
-- so every refusal is audited.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents, then agent id, how many at most, how long an event may be early (ms)
-- RETURNS {'OK', {wake, how many still wait, answer, ...}}: op_id, event, then the answer's fields
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local id, limit, patience = ARGV[cursor], tonumber(ARGV[cursor + 1]), tonumber(ARGV[cursor + 2])
local inbox, inboxes = prefix .. 'inbox:' .. id, prefix .. 'inboxes'
local entries = redis.call('LRANGE', inbox, 0, limit - 1)
if #entries == 0 then
  redis.call('ZREM', inboxes, id)
  return {'OK', {'0', 0}}
end

local rows = {}
local function try(entry)
  local values = {}
  for value in string.gmatch(entry .. '\31', '([^\31]*)\31') do
    values[#values + 1] = value
  end
  local request = read_request(values, 2)
  local result = apply(request)
  if result[1] == 'EARLY' and now - tonumber(values[1]) < patience then
    return false
  end
  if result[1] ~= 'APPLIED' and result[1] ~= 'LEASE_LOST' and not result.repeated then
    audit_refusal(id, request, result)
  end
  rows[#rows + 1] = {request.op_id, request.event, unpack(answer_row(result))}
  return true
end

local early = {}
for _, entry in ipairs(entries) do
  if not try(entry) then
    early[#early + 1] = entry
  end
end
redis.call('LTRIM', inbox, #entries, -1)
for i = #early, 1, -1 do
  redis.call('LPUSH', inbox, early[i])
end
flush()
local waiting = redis.call('LLEN', inbox)
if waiting == 0 then
  redis.call('ZREM', inboxes, id)
else
  redis.call('ZADD', inboxes, int(now), id)
end
return {'OK', {wake(), waiting, unpack(rows)}}
