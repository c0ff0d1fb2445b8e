-- Agents in the order of their ids, from after a given one.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (no rules), then last id seen or '', how many
-- RETURNS {'OK', {record, ...}}
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local after, limit = unpack(ARGV, cursor)
local ids = redis.call('ZRANGEBYLEX', prefix .. 'agents', after == '' and '-' or '(' .. after, '+', 'LIMIT', 0, limit)
local records = {}
for _, id in ipairs(ids) do
  records[#records + 1] = record_row(id)
end
return {'OK', records}
