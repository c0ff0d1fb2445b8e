-- Suspect the agents that have been silent for half the threshold, and lose those that passed it.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (rules: lost event), then
--   threshold in ms, how many at most, lost event
-- RETURNS {'OK', {wake, {suspect id, ...}, {lost id, ...}}}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local threshold, limit, lost_event = tonumber(ARGV[cursor]), ARGV[cursor + 1], ARGV[cursor + 2]
local beats, suspects = prefix .. 'heartbeats', prefix .. 'suspects'
local gone, silent = int(now - threshold), int(now - math.floor(threshold / 2))
local suspected, lost = {}, {}

local function owner(member)
  return string.match(member, '^[^@]+')
end

for _, member in ipairs(redis.call('SMEMBERS', suspects)) do
  local beat = redis.call('ZSCORE', beats, member)
  if beat and tonumber(beat) > tonumber(silent) then
    redis.call('SREM', suspects, member)
    emit('agent:recovered', owner(member), '', 'null', 'null', 'null')
  end
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', beats, '(' .. gone, silent, 'LIMIT', 0, limit)) do
  if redis.call('SADD', suspects, member) == 1 then
    suspected[#suspected + 1] = owner(member)
    emit('agent:suspect', owner(member), '', 'null', 'null', 'null')
  end
end
for _, member in ipairs(redis.call('ZRANGEBYSCORE', beats, '-inf', gone, 'LIMIT', 0, limit)) do
  local id = owner(member)
  local agent = load_agent(id)
  if agent and beat_member(agent) == member then
    apply({agent_id = id, event = lost_event, op_id = 'lost.' .. member, task_id = '', priority = '',
      expected_version = '', expected_state = '', epoch = '', data = 'null'})
    lost[#lost + 1] = id
  end
  redis.call('ZREM', beats, member)
end
flush()
return {'OK', {wake(), suspected, lost}}
