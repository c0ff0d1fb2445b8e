-- One agent's record.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (no rules), then agent id
-- RETURNS {'OK', record, empty if there is none}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
return {'OK', record_row(ARGV[cursor])}
