-- Give the best waiting task to the longest idle agent that is able to do it.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (rules: assign event), then op_id, assign event
-- RETURNS {'OK', {task id, agent id, agent's epoch, fence, priority}} or {'NONE', ''}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local op_id, assign_event = ARGV[cursor], ARGV[cursor + 1]
local memory = prefix .. 'assigns'
local known = recall(memory, op_id)
if known then
  return {'OK', known}
end

local function longest_idle(wanted)
  local best, since
  for _, offered in ipairs(redis.call('SMEMBERS', prefix .. 'idles')) do
    if wanted_by(wanted, offered) then
      local head = redis.call('ZRANGE', prefix .. 'idle:' .. offered, 0, 0, 'WITHSCORES')
      if not best or tonumber(head[2]) < since or (tonumber(head[2]) == since and head[1] < best) then
        best, since = head[1], tonumber(head[2])
      end
    end
  end
  return best
end

for _, head in ipairs(heads_of_lines()) do
  local agent_id = longest_idle(head.capabilities)
  if agent_id then
    apply({agent_id = agent_id, event = assign_event, op_id = op_id .. '.assign', task_id = head.id, priority = '',
      expected_version = '', expected_state = '', epoch = '', data = 'null'})
    flush()
    local task, agent = load_task(head.id), load_agent(agent_id)
    local assigned = {head.id, agent_id, int(agent.epoch), task.fence, int(task.priority)}
    remember(memory, op_id, assigned)
    return {'OK', assigned}
  end
end
return {'NONE', ''}
