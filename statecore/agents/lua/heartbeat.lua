-- Note that agents live. A member of the sorted set is <agent>@<epoch>, so an old epoch finds none to update.
-- KEYS, ARGV[1..3] see prelude; ARGV[4..] see agents (no rules), then agent id and epoch, repeatedly
-- RETURNS {'OK', {answer, ...}} for those refused: agent id, then NOT_FOUND | LEASE_LOST | INVALID with its fields
--@include backends/prelude
--@include claims/tasks
--@include agents/agents
local members, refused = {}, {}
for i = cursor, #ARGV, 2 do
  members[#members + 1] = ARGV[i] .. '@' .. ARGV[i + 1]
end
local scores = redis.call('ZMSCORE', prefix .. 'heartbeats', unpack(members))
local beats = {}
for i, member in ipairs(members) do
  if scores[i] and is_current(tonumber(ARGV[cursor + 2 * i - 1])) then
    beats[#beats + 1] = int(now)
    beats[#beats + 1] = member
  else
    local id, epoch = ARGV[cursor + 2 * i - 2], ARGV[cursor + 2 * i - 1]
    local agent = load_agent(id)
    local reply = {'NOT_FOUND'}
    if agent and int(agent.epoch) == epoch and is_current(agent.epoch) then
      reply = answer(agent, 'INVALID', 'heartbeat', agent.state)
    elseif agent then
      reply = answer(agent, 'LEASE_LOST', 'epoch ' .. epoch, 'epoch ' .. int(agent.epoch))
      audit_refusal(id, {event = 'heartbeat', op_id = ''}, reply)
    end
    refused[#refused + 1] = {id, '0', unpack(reply)}
  end
end
if #beats > 0 then
  redis.call('ZADD', prefix .. 'heartbeats', 'XX', 'GT', unpack(beats))
end
return {'OK', refused}
