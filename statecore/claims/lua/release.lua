-- Give a task back to its place under its fence; the attempt does not count.
-- KEYS, ARGV[1..3] see prelude; ARGV[4] task id  ARGV[5] fence  ARGV[6] op_id
-- RETURNS {'OK', task}, {'LEASE_LOST', {presented, current}} or {'NOT_FOUND', ''}
--@include backends/prelude
--@include claims/tasks
local id, fence, op_id = unpack(ARGV, 4)
local task, settled = fenced_task(id, fence, op_id, 'release')
if settled then
  return settled
end
release_task(task, op_id)
remember(task_key(id), op_id, task_row(task))
return {'OK', task_row(task)}
