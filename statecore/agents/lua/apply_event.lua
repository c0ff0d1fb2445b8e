-- Apply one event to one agent and audit it.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents, then one request of nine fields
-- RETURNS {'OK', {wake, answer, record}}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local request = read_request(ARGV, cursor)
local result = apply(request)
flush()
return {'OK', {wake(), answer_row(result), record_row(request.agent_id)}}
