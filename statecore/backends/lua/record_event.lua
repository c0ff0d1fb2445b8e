-- Append an event that goes with no change of state.
-- KEYS, ARGV[1..3] see prelude; ARGV[4] kind  ARGV[5] subject  ARGV[6] op_id  ARGV[7] data
-- RETURNS {'OK', id of the event}
--@include backends/prelude
return {'OK', emit(ARGV[4], ARGV[5], ARGV[6], 'null', 'null', ARGV[7])}
