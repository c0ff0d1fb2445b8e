-- One task as it stands.
-- KEYS, ARGV[1..3] see prelude; ARGV[4] task id
-- RETURNS {'OK', task} or {'NOT_FOUND', ''}
--@include backends/prelude
--@include claims/tasks
local task = load_task(ARGV[4])
return task and {'OK', task_row(task)} or {'NOT_FOUND', ''}
