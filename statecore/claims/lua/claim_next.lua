-- Give the best waiting task that the claimer is able to do to it, under a new fence.
-- KEYS, ARGV[1..3] see prelude; ARGV[4] claimer  ARGV[5] its capabilities  ARGV[6] lease in ms  ARGV[7] op_id
-- RETURNS {'OK', task} or {'NONE', ''}
--@include backends/prelude
--@include claims/tasks
local claimer, capabilities, lease_ms, op_id = unpack(ARGV, 4)
local memory = prefix .. 'claimer:' .. claimer
local known = recall(memory, op_id)
if known then
  return {'OK', known}
end
for _, head in ipairs(heads_of_lines()) do
  if wanted_by(head.capabilities, capabilities) then
    local task = load_task(head.id)
    hold_task(task, claimer, tonumber(lease_ms), op_id)
    remember(memory, op_id, task_row(task))
    redis.call('EXPIRE', memory, 3600)
    return {'OK', task_row(task)}
  end
end
return {'NONE', ''}
