-- Register an agent, or take it up again under a new epoch: whoever ran it before is refused from now on.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (rules: lost event, return event), then
--   agent id, op_id, capabilities, metadata, data of the event, initial state, lost event, return event
-- RETURNS {'OK', {wake, answer, record}}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local id, op_id, capabilities, metadata, data, initial, lost_event, return_event = unpack(ARGV, cursor)
local agent = load_agent(id)

local function event(name, event_op_id)
  return {agent_id = id, event = name, op_id = event_op_id, task_id = '', priority = '', expected_version = '',
    expected_state = '', epoch = '', data = data}
end

if not agent then
  agent = {id = id, key = agent_key(id), state = initial, version = 1, epoch = next_fence(), task = '',
    priority = '0', capabilities = capabilities, changed = true}
  touched[id] = agent
  redis.call('HSET', agent.key, 'capabilities', capabilities, 'metadata', metadata, 'registered_at', int(now))
  redis.call('ZADD', prefix .. 'agents', 0, id)
  index_agent(agent)
  emit('agent:registered', id, op_id, 'null', agent_json(agent), data)
  local registered = answer(agent, 'APPLIED')
  remember(agent.key, op_id, registered)
  flush()
  return {'OK', {wake(), answer_row(registered), record_row(id)}}
end

local known = answered(agent, op_id)
if known then
  return {'OK', {'0', answer_row(known), record_row(id)}}
end
if among(watched, agent.state) then
  apply(event(lost_event, op_id .. '.lost'))
end
agent.capabilities = capabilities
redis.call('HSET', agent.key, 'capabilities', capabilities, 'metadata', metadata, 'registered_at', int(now))
local returned = apply(event(return_event, op_id))
flush()
return {'OK', {wake(), answer_row(returned), record_row(id)}}
