-- The queue's data: task:<id> is the truth; queue:<capabilities> ranks those that wait, leases those that may run out.
-- Waiting tasks stand in one sorted set per set of wanted capabilities, so a task that nobody can do blocks no other.
local PLACES = 1000000000000

local function task_key(id)
  return prefix .. 'task:' .. id
end

local function load_task(id)
  local f = redis.call('HMGET', task_key(id), 'priority', 'place', 'capabilities', 'status', 'attempts',
    'max_attempts', 'claimed_by', 'claimed_at', 'fence')
  if not f[1] then
    return nil
  end
  return {id = id, priority = tonumber(f[1]), place = tonumber(f[2]), capabilities = f[3], status = f[4],
    attempts = tonumber(f[5]), max_attempts = tonumber(f[6]), claimed_by = f[7], claimed_at = f[8], fence = f[9]}
end

local function task_row(task)
  return {task.id, int(task.priority), int(task.place), task.capabilities, task.status, int(task.attempts),
    int(task.max_attempts), task.claimed_by, task.claimed_at, task.fence}
end

local function task_json(task)
  local holder = task.claimed_by == '' and 'null' or '"' .. task.claimed_by .. '"'
  local fence = task.fence == '' and 'null' or task.fence
  return '{"status":"' .. task.status .. '","fence":' .. fence .. ',"claimed_by":' .. holder .. '}'
end

local function save_task(task)
  redis.call('HSET', task_key(task.id), 'priority', int(task.priority), 'place', int(task.place),
    'capabilities', task.capabilities, 'status', task.status, 'attempts', int(task.attempts),
    'max_attempts', int(task.max_attempts), 'claimed_by', task.claimed_by, 'claimed_at', task.claimed_at,
    'fence', task.fence)
end

local function line_up(task)
  redis.call('ZADD', prefix .. 'queue:' .. task.capabilities, int(task.place - task.priority * PLACES), task.id)
  redis.call('SADD', prefix .. 'queues', task.capabilities)
end

local function leave_line(task)
  local line = prefix .. 'queue:' .. task.capabilities
  redis.call('ZREM', line, task.id)
  if redis.call('EXISTS', line) == 0 then
    redis.call('SREM', prefix .. 'queues', task.capabilities)
  end
end

local function new_task(id, priority, capabilities, max_attempts)
  return {id = id, priority = priority, place = redis.call('HINCRBY', KEYS[1], 'places', 1),
    capabilities = capabilities, status = 'queued', attempts = 0, max_attempts = max_attempts,
    claimed_by = '', claimed_at = '', fence = '', new = true}
end

local function change_task(task, kind, op_id, before)
  save_task(task)
  emit(kind, task.id, op_id, before, task_json(task), '{"attempts":' .. int(task.attempts) .. '}')
end

-- A lease of nil has no end of its own: the holder's heartbeat governs it.
local function hold_task(task, holder, lease_ms, op_id)
  local before = task.new and 'null' or task_json(task)
  leave_line(task)
  task.status, task.claimed_by, task.claimed_at = 'claimed', holder, int(now)
  task.fence, task.attempts = int(next_fence()), task.attempts + 1
  if lease_ms then
    redis.call('ZADD', prefix .. 'leases', int(now + lease_ms), task.id)
  end
  change_task(task, 'task:claimed', op_id, before)
end

local function free_task(task)
  redis.call('ZREM', prefix .. 'leases', task.id)
  task.claimed_by, task.claimed_at, task.fence = '', '', ''
end

local function end_task(task, status, op_id)
  local before = task_json(task)
  if status == 'failed' then
    free_task(task)
  end
  redis.call('ZREM', prefix .. 'leases', task.id)
  task.status = status
  change_task(task, 'task:' .. status, op_id, before)
  redis.call('EXPIRE', task_key(task.id), 3600)
end

local function requeue_task(task, kind, op_id)
  local before = task_json(task)
  free_task(task)
  task.status = 'queued'
  line_up(task)
  change_task(task, kind, op_id, before)
end

-- The holder gives it back in good order: the attempt does not count.
local function release_task(task, op_id)
  task.attempts = task.attempts - 1
  requeue_task(task, 'task:released', op_id)
end

-- The holder is gone: back to its place, or failed if it has used up its attempts.
local function reclaim_task(task, op_id)
  if task.attempts >= task.max_attempts then
    end_task(task, 'failed', op_id)
  else
    requeue_task(task, 'task:reclaimed', op_id)
  end
end

local function held_task(id, holder)
  local task = id ~= '' and load_task(id)
  if task and task.status == 'claimed' and task.claimed_by == holder then
    return task
  end
end

local function wanted_by(capabilities, offered)
  for capability in string.gmatch(capabilities, '[^,]+') do
    if not string.find(',' .. offered .. ',', ',' .. capability .. ',', 1, true) then
      return false
    end
  end
  return true
end

-- True if a supervisor would find both a waiting task and an idle agent.
local function work_waits()
  return redis.call('EXISTS', prefix .. 'queues') == 1 and redis.call('EXISTS', prefix .. 'idles') == 1
end

local function waiting_tasks()
  local waiting = 0
  for _, capabilities in ipairs(redis.call('SMEMBERS', prefix .. 'queues')) do
    waiting = waiting + redis.call('ZCARD', prefix .. 'queue:' .. capabilities)
  end
  return waiting
end

-- The heads of the lines, best first, each as {capabilities, task id, rank}.
local function heads_of_lines()
  local heads = {}
  for _, capabilities in ipairs(redis.call('SMEMBERS', prefix .. 'queues')) do
    local head = redis.call('ZRANGE', prefix .. 'queue:' .. capabilities, 0, 0, 'WITHSCORES')
    heads[#heads + 1] = {capabilities = capabilities, id = head[1], rank = tonumber(head[2])}
  end
  table.sort(heads, function(a, b) return a.rank < b.rank end)
  return heads
end

-- The reply that an operation got when it was new; nil if it is.
local function first_answer(id, op_id)
  local known = recall(task_key(id), op_id)
  if known and known[1] == 'LEASE_LOST' then
    return {'LEASE_LOST', {known[2], known[3]}}
  end
  return known and {'OK', known}
end

-- The task under its current fence, or the reply that settles the matter: a known op_id, an old fence, no such task.
local function fenced_task(id, fence, op_id, operation)
  local task = load_task(id)
  if not task then
    return nil, {'NOT_FOUND', ''}
  end
  local known = first_answer(id, op_id)
  if known then
    return nil, known
  end
  if task.status == 'claimed' and task.fence == fence and is_current(tonumber(fence)) then
    return task
  end
  local current = task.status == 'claimed' and task.fence or task.status
  remember(task_key(id), op_id, {'LEASE_LOST', fence, current})
  emit('task:refused', id, op_id, 'null', 'null', '{"operation":"' .. operation .. '","presented":"' .. fence
    .. '","current":"' .. current .. '"}')
  return nil, {'LEASE_LOST', {fence, current}}
end
