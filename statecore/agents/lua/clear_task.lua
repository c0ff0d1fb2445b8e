-- Take the current task off an agent whatever its state; the task goes back to the queue without counting an attempt.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (no rules), then agent id, op_id
-- RETURNS {'OK', {wake, answer, record}}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local id, op_id = unpack(ARGV, cursor)
local agent = load_agent(id)
if not agent then
  return {'OK', {'0', {'0', 'NOT_FOUND'}, {}}}
end
local result = answered(agent, op_id)
if result then
  return {'OK', {'0', answer_row(result), record_row(id)}}
end
local before = agent_json(agent)
drop_task(agent, 'release', op_id)
agent.version, agent.changed = agent.version + 1, true
emit('agent:task_cleared', id, op_id, before, agent_json(agent), 'null')
result = answer(agent, 'APPLIED')
remember(agent.key, op_id, result)
flush()
return {'OK', {wake(), answer_row(result), record_row(id)}}
