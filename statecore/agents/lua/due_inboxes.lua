-- Inboxes that have waited too long: their message was lost, or no worker listens. Each is named once per interval.
-- KEYS, ARGV[1..3] see prelude; ARGV[4] age in ms, ARGV[5] how many at most
-- RETURNS {'OK', {agent id, ...}}
--@include backends/prelude
local inboxes = prefix .. 'inboxes'
local due = redis.call('ZRANGEBYSCORE', inboxes, '-inf', int(now - tonumber(ARGV[4])), 'LIMIT', 0, ARGV[5])
for _, id in ipairs(due) do
  redis.call('ZADD', inboxes, int(now), id)
end
return {'OK', due}
