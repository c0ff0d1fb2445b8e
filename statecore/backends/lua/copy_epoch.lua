-- Note the epoch that was raised for this run of the server, unless a later one stands here already.
-- KEYS[1] epoch hash
-- ARGV[1] epoch  ARGV[2] run_id of the server
-- RETURNS {'OK', epoch that stands}
local standing = tonumber(redis.call('HGET', KEYS[1], 'epoch') or '0')
if tonumber(ARGV[1]) > standing then
  redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'run_id', ARGV[2], 'counter', 0)
  standing = tonumber(ARGV[1])
end
return {'OK', standing}
