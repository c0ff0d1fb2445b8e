-- Queue a task; an equal one that has not ended stays as it is.
-- KEYS, ARGV[1..3] see prelude
-- ARGV[4] task id  ARGV[5] priority  ARGV[6] capabilities  ARGV[7] max attempts  ARGV[8] op_id  ARGV[9] queue limit
-- ARGV[10] data of the event
-- RETURNS {'OK', task}, {'EXISTS', status}, {'FULL', how many wait}, or the first answer of a known op_id
--@include backends/prelude
--@include claims/tasks
local id, priority, capabilities, max_attempts, op_id, limit, data = unpack(ARGV, 4)
local task = load_task(id)
if not task then
  local waiting = waiting_tasks()
  if waiting >= tonumber(limit) then
    return {'FULL', waiting}
  end
  task = new_task(id, tonumber(priority), capabilities, tonumber(max_attempts))
  save_task(task)
  line_up(task)
  emit('task:queued', id, op_id, 'null', task_json(task), data)
else
  local known = first_answer(id, op_id)
  if known then
    return known
  end
  local equal = task.priority == tonumber(priority) and task.capabilities == capabilities
    and task.max_attempts == tonumber(max_attempts)
  if not equal or (task.status ~= 'queued' and task.status ~= 'claimed') then
    return {'EXISTS', task.status}
  end
end
remember(task_key(id), op_id, task_row(task))
return {'OK', task_row(task)}
