-- What every changing script begins with: the epoch must be there, the time is the server's, events go to one stream.
-- KEYS[1] epoch hash  KEYS[2] event stream
-- ARGV[1] injected time in ms, or ''  ARGV[2] actor  ARGV[3] length limit of the stream
-- A fence is the namespace's epoch and a counter in one number, see fences.py.
local FENCE_BASE = 1000000000

local standing = redis.call('HMGET', KEYS[1], 'epoch', 'counter')
local namespace_epoch = tonumber(standing[1] or '')
if not namespace_epoch or tonumber(standing[2] or '0') > FENCE_BASE - 100000 then
  -- Without a run_id the client raises the epoch, which starts the counter anew.
  redis.call('HDEL', KEYS[1], 'run_id')
  return {'NO_EPOCH', ''}
end

-- Writes nothing, but a server out of memory refuses it: here, and not behind a removal that it would still allow.
redis.call('SETRANGE', KEYS[1] .. ':room', 0, '')

local prefix = string.sub(KEYS[1], 1, -6)
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Lua prints numbers above 1e14 with an exponent.
local function int(number)
  return string.format('%.0f', number)
end

local function emit(kind, subject, op_id, before, after, data)
  return redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'at', int(now), 'kind', kind, 'subject', subject,
    'actor', ARGV[2], 'op_id', op_id, 'before', before, 'after', after, 'data', data)
end

local function next_fence()
  return namespace_epoch * FENCE_BASE + redis.call('HINCRBY', KEYS[1], 'counter', 1)
end

local function is_current(fence)
  return fence > namespace_epoch * FENCE_BASE
end

-- The last operations of a subject stand in its own hash, as op:<op_id> -> <number>|<answer>.
local OPS_KEPT = 32

local function recall(key, op_id)
  local kept = redis.call('HGET', key, 'op:' .. op_id)
  if not kept then
    return nil
  end
  local answer = {}
  for part in string.gmatch(kept .. '|', '([^|]*)|') do
    answer[#answer + 1] = part
  end
  table.remove(answer, 1)
  return answer
end

local function forget_old_ops(key, last)
  local all = redis.call('HGETALL', key)
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 3) == 'op:' and tonumber(string.match(all[i + 1], '^%d+')) <= last - OPS_KEPT then
      redis.call('HDEL', key, all[i])
    end
  end
end

local function remember(key, op_id, answer)
  local number = redis.call('HINCRBY', key, 'ops', 1)
  redis.call('HSET', key, 'op:' .. op_id, number .. '|' .. table.concat(answer, '|'))
  if number % OPS_KEPT == 0 then
    forget_old_ops(key, number)
  end
end
