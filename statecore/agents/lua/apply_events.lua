-- Apply events in the given order, one outcome each; a refused one does not stop those behind it.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents, then requests of nine fields each
-- RETURNS {'OK', {wake, answer, answer, ...}}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local rows = {}
for first = cursor, #ARGV, #REQUEST_FIELDS do
  rows[#rows + 1] = answer_row(apply(read_request(ARGV, first)))
end
flush()
return {'OK', {wake(), unpack(rows)}}
