-- How many tasks wait.
-- KEYS, ARGV[1..3] see prelude
-- RETURNS {'OK', how many}
--@include backends/prelude
--@include claims/tasks
return {'OK', waiting_tasks()}
