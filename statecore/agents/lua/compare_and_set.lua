-- The bare primitive: set the state if it is the expected one.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (no rules), then agent id, op_id, expected, next
-- RETURNS {'OK', {wake, answer, record}}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local id, op_id, expected, next_state = unpack(ARGV, cursor)
local agent = load_agent(id)
if not agent then
  return {'OK', {'0', {'0', 'NOT_FOUND'}, {}}}
end
local result = answered(agent, op_id)
if result then
  return {'OK', {'0', answer_row(result), record_row(id)}}
end
if agent.state == expected then
  local before = agent_json(agent)
  move_agent(agent, next_state, agent.epoch)
  agent.changed = true
  emit('agent:state_set', id, op_id, before, agent_json(agent), 'null')
  result = answer(agent, 'APPLIED')
else
  result = answer(agent, 'CONFLICT', expected, agent.state)
end
remember(agent.key, op_id, result)
flush()
return {'OK', {wake(), answer_row(result), record_row(id)}}
