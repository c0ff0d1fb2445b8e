-- Put back, or fail, tasks whose lease ran out, the longest overdue first.
-- KEYS, ARGV[1..3] see prelude; ARGV[4] how many at most  ARGV[5] op_id
-- RETURNS {'OK', {task, ...}}
--@include backends/prelude
--@include claims/tasks
local rows = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'leases', '-inf', int(now), 'LIMIT', 0, ARGV[4])) do
  local task = load_task(id)
  reclaim_task(task, ARGV[5])
  rows[#rows + 1] = task_row(task)
end
return {'OK', rows}
