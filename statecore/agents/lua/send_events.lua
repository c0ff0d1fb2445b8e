-- Put events into agents' inboxes, all of them or none. Whoever puts the first one into an empty inbox must ring.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (no rules), then the inbox limit, then per event:
--   agent id, op_id, the packed request
-- RETURNS {'OK', {agent id to ring for, ...}}, {'NOT_FOUND', agent id} or {'FULL', {agent id, length}}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local limit = tonumber(ARGV[cursor])
local lengths, fresh, ring = {}, {}, {}
for i = cursor + 1, #ARGV, 3 do
  local id, op_id = ARGV[i], ARGV[i + 1]
  if not load_agent(id) then
    return {'NOT_FOUND', id}
  end
  if not recall(agent_key(id), op_id) then
    lengths[id] = (lengths[id] or redis.call('LLEN', prefix .. 'inbox:' .. id)) + 1
    if lengths[id] > limit then
      return {'FULL', {id, lengths[id]}}
    end
    fresh[#fresh + 1] = i
  end
end
for _, i in ipairs(fresh) do
  local id = ARGV[i]
  remember(agent_key(id), ARGV[i + 1], {'SENT'})
  if redis.call('RPUSH', prefix .. 'inbox:' .. id, int(now) .. '\31' .. ARGV[i + 2]) == 1 then
    redis.call('ZADD', prefix .. 'inboxes', int(now), id)
    ring[#ring + 1] = id
  end
end
return {'OK', ring}
