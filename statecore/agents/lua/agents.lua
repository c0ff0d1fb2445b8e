-- The agents' data and the one way to apply an event to it. Agents that a call touches are written once, by flush().
-- ARGV[4] states that must send heartbeats, as |a|b|  ARGV[5] states in which a task can be assigned, as |a|b|
-- ARGV[6] number of rules, then per rule: event, task effect, 1 if it raises the epoch, edges as |from=to|from=to|
local watched, assignable = ARGV[4], ARGV[5]
local rules = {}
local cursor = 7
for _ = 1, tonumber(ARGV[6]) do
  rules[ARGV[cursor]] = {task = ARGV[cursor + 1], raises = ARGV[cursor + 2] == '1', edges = ARGV[cursor + 3]}
  cursor = cursor + 4
end

local touched = {}
local indexes_changed = false

local function among(states, state)
  return string.find(states, '|' .. state .. '|', 1, true) ~= nil
end

local function agent_key(id)
  return prefix .. 'agent:' .. id
end

local function load_agent(id)
  local agent = touched[id]
  if agent == nil then
    local f = redis.call('HMGET', agent_key(id), 'state', 'version', 'epoch', 'current_task_id',
      'current_task_priority', 'capabilities')
    agent = f[1] and {id = id, key = agent_key(id), state = f[1], version = tonumber(f[2]), epoch = tonumber(f[3]),
      task = f[4], priority = f[5], capabilities = f[6]}
    touched[id] = agent
  end
  return agent
end

local function agent_json(agent)
  local task = agent.task == '' and 'null' or '"' .. agent.task .. '"'
  return '{"state":"' .. agent.state .. '","version":' .. int(agent.version) .. ',"epoch":' .. int(agent.epoch)
    .. ',"task_id":' .. task .. ',"task_priority":' .. agent.priority .. '}'
end

-- code, what was wanted, what was found, then the agent as it stands
local function answer(agent, code, wanted, found)
  return {code, wanted or '', found or '', agent.state, int(agent.version), int(agent.epoch), agent.task,
    agent.priority}
end

-- The first answer to an operation; one that only waits in the inbox has none yet.
local function answered(agent, op_id)
  local known = recall(agent.key, op_id)
  if known and known[1] ~= 'SENT' then
    known.repeated = true
    return known
  end
end

local function beat_member(agent)
  return agent.id .. '@' .. int(agent.epoch)
end

local function leave_idle(agent)
  local line = prefix .. 'idle:' .. agent.capabilities
  redis.call('ZREM', line, agent.id)
  if redis.call('EXISTS', line) == 0 then
    redis.call('SREM', prefix .. 'idles', agent.capabilities)
  end
end

-- The sorted sets follow the state: who must beat, and who waits for work.
local function index_agent(agent)
  if among(watched, agent.state) then
    redis.call('ZADD', prefix .. 'heartbeats', 'NX', int(now), beat_member(agent))
  end
  if among(assignable, agent.state) then
    redis.call('ZADD', prefix .. 'idle:' .. agent.capabilities, int(now), agent.id)
    redis.call('SADD', prefix .. 'idles', agent.capabilities)
  end
  indexes_changed = true
end

local function unindex_agent(agent, next_state, next_epoch)
  if next_epoch ~= agent.epoch or not among(watched, next_state) then
    redis.call('ZREM', prefix .. 'heartbeats', beat_member(agent))
    redis.call('SREM', prefix .. 'suspects', beat_member(agent))
  end
  if among(assignable, agent.state) then
    leave_idle(agent)
  end
end

local function move_agent(agent, next_state, next_epoch)
  if next_state ~= agent.state or next_epoch ~= agent.epoch then
    unindex_agent(agent, next_state, next_epoch)
    agent.state, agent.epoch = next_state, next_epoch
    index_agent(agent)
  end
  agent.version = agent.version + 1
end

local function flush()
  for _, agent in pairs(touched) do
    if agent and agent.changed then
      redis.call('HSET', agent.key, 'state', agent.state, 'version', int(agent.version), 'epoch', int(agent.epoch),
        'current_task_id', agent.task, 'current_task_priority', agent.priority)
    end
  end
end

-- The same order of checks as `refuse` in transitions.py.
local function refusal(agent, request, rule)
  local lease_stands = tonumber(request.epoch) == agent.epoch and is_current(agent.epoch)
  if request.epoch ~= '' and not lease_stands then
    return answer(agent, 'LEASE_LOST', 'epoch ' .. request.epoch, 'epoch ' .. int(agent.epoch))
  end
  if not rule then
    return answer(agent, 'INVALID', request.event, agent.state)
  end
  if request.task_id ~= '' and rule.task ~= 'take' and request.task_id ~= agent.task then
    return answer(agent, 'LEASE_LOST', 'task ' .. request.task_id, 'task ' .. (agent.task == '' and 'none' or agent.task))
  end
  if request.expected_version ~= '' and tonumber(request.expected_version) ~= agent.version then
    local early = tonumber(request.expected_version) > agent.version
    return answer(agent, early and 'EARLY' or 'CONFLICT', request.expected_version, int(agent.version))
  end
  if request.expected_state ~= '' and request.expected_state ~= agent.state then
    return answer(agent, 'CONFLICT', request.expected_state, agent.state)
  end
  if not string.find(rule.edges, '|' .. agent.state .. '=', 1, true) then
    return answer(agent, 'INVALID', request.event, agent.state)
  end
end

local function audit_refusal(agent_id, request, refused)
  emit('agent:refused', agent_id, request.op_id, 'null', 'null', '{"event":"' .. request.event .. '","code":"'
    .. refused[1] .. '","wanted":"' .. (refused[2] or '') .. '","found":"' .. (refused[3] or '') .. '"}')
end

-- A refusal if the task can't be taken; else the agent holds it.
local function take_task(agent, request)
  local task = load_task(request.task_id)
  if not task then
    task = new_task(request.task_id, tonumber(request.priority) or 0, '', 3)
  elseif task.status == 'claimed' and task.claimed_by ~= agent.id then
    return answer(agent, 'TASK_TAKEN', task.id, task.claimed_by)
  elseif task.status ~= 'queued' and task.status ~= 'claimed' then
    return answer(agent, 'TASK_ENDED', task.id, task.status)
  end
  if task.status == 'queued' then
    hold_task(task, agent.id, nil, request.op_id)
  end
  agent.task, agent.priority = task.id, int(task.priority)
end

local function drop_task(agent, effect, op_id)
  local task = held_task(agent.task, agent.id)
  if task and effect == 'finish' then
    end_task(task, 'completed', op_id)
  elseif task and effect == 'release' then
    release_task(task, op_id)
    indexes_changed = true
  elseif task then
    reclaim_task(task, op_id)
    indexes_changed = true
  end
  agent.task, agent.priority = '', '0'
end

local function next_epoch(agent)
  return math.max(agent.epoch, namespace_epoch * FENCE_BASE) + 1
end

-- The answer to one request; whether it was known already is its field `repeated`.
local function apply(request)
  local agent = load_agent(request.agent_id)
  if not agent then
    return {'NOT_FOUND'}
  end
  local known = answered(agent, request.op_id)
  if known then
    return known
  end
  local rule = rules[request.event]
  local before = agent_json(agent)
  local refused = refusal(agent, request, rule) or (rule.task == 'take' and take_task(agent, request)) or nil
  if refused then
    if refused[1] ~= 'EARLY' then
      remember(agent.key, request.op_id, refused)
    end
    if refused[1] == 'LEASE_LOST' then
      audit_refusal(agent.id, request, refused)
    end
    return refused
  end
  if rule.task == 'finish' or rule.task == 'put_back' then
    drop_task(agent, rule.task, request.op_id)
  end
  local target = string.match(rule.edges, '|' .. agent.state .. '=([^|]+)')
  move_agent(agent, target, rule.raises and next_epoch(agent) or agent.epoch)
  agent.changed = true
  emit('agent:' .. request.event, agent.id, request.op_id, before, agent_json(agent), request.data)
  local applied = answer(agent, 'APPLIED')
  remember(agent.key, request.op_id, applied)
  return applied
end

local REQUEST_FIELDS = {'agent_id', 'event', 'op_id', 'task_id', 'priority', 'expected_version', 'expected_state',
  'epoch', 'data'}

local function read_request(values, first)
  local request = {}
  for i, field in ipairs(REQUEST_FIELDS) do
    request[field] = values[first + i - 1]
  end
  return request
end

local function answer_row(result)
  return {result.repeated and '1' or '0', unpack(result)}
end

local function record_row(id)
  local f = redis.call('HMGET', agent_key(id), 'state', 'version', 'epoch', 'current_task_id',
    'current_task_priority', 'capabilities', 'metadata', 'registered_at')
  if not f[1] then
    return {}
  end
  local beat = redis.call('ZSCORE', prefix .. 'heartbeats', id .. '@' .. f[3])
  return {id, f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], beat or ''}
end

local function wake()
  return indexes_changed and work_waits() and '1' or '0'
end
