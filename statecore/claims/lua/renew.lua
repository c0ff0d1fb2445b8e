-- Move the end of a lease; a task that an agent holds has none and stays so.
-- KEYS, ARGV[1..3] see prelude; ARGV[4] task id  ARGV[5] fence  ARGV[6] op_id  ARGV[7] lease in ms
-- RETURNS {'OK', task}, {'LEASE_LOST', {presented, current}} or {'NOT_FOUND', ''}
--@include backends/prelude
--@include claims/tasks
local id, fence, op_id, lease_ms = unpack(ARGV, 4)
local task, settled = fenced_task(id, fence, op_id, 'renew')
if settled then
  return settled
end
redis.call('ZADD', prefix .. 'leases', 'XX', int(now + tonumber(lease_ms)), id)
remember(task_key(id), op_id, task_row(task))
return {'OK', task_row(task)}
