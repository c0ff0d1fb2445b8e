-- Remove an agent: its task goes back to the queue, what waits in its inbox is dropped and counted.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents, then agent id, op_id
-- RETURNS {'OK', wake} or {'NOT_FOUND', '0'}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local id, op_id = unpack(ARGV, cursor)
local agent = load_agent(id)
local gone = prefix .. 'gone:' .. id
if not agent then
  return {redis.call('GET', gone) == op_id and 'OK' or 'NOT_FOUND', '0'}
end
local before = agent_json(agent)
drop_task(agent, 'release', op_id)
unindex_agent(agent, '', agent.epoch)
local dropped = redis.call('LLEN', prefix .. 'inbox:' .. id)
redis.call('DEL', agent.key, prefix .. 'inbox:' .. id)
redis.call('ZREM', prefix .. 'inboxes', id)
redis.call('ZREM', prefix .. 'agents', id)
-- The next registration of this id takes its epoch from the namespace's counter, which must not fall behind.
local counted = tonumber(redis.call('HGET', KEYS[1], 'counter') or '0')
redis.call('HSET', KEYS[1], 'counter', int(math.max(counted, agent.epoch - namespace_epoch * FENCE_BASE)))
redis.call('SET', gone, op_id, 'EX', 3600)
emit('agent:deregistered', id, op_id, before, 'null', '{"inbox_dropped":' .. dropped .. '}')
return {'OK', wake()}
