-- Shared by every script. Keys are computed from ids: broker, ledger and channels live in one Redis database.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local BUS_TTL_S = 60

local function num(x) return string.format('%.6f', x) end
local function job_key(id) return 'ty:job:' .. id end
local function payload_key(id, name) return 'ty:payload:' .. id .. ':' .. name end
local function bus_key(name) return 'ty:bus:' .. name end
local function waiting_key(pool) return 'ty:waiting:' .. pool end
local function terminal(status)
  return status == 'succeeded' or status == 'failed' or status == 'cancelled' or status == 'expired'
end

-- Leave a message in a process's inbox. What a reader is waiting for it takes at once; what stays is kept for a while.
local function tell(bus, line)
  if redis.call('RPUSH', bus_key(bus), line) > 1 then redis.call('EXPIRE', bus_key(bus), BUS_TTL_S) end
end

-- Append lines to the events channel and send them to everybody who listens. `head`: {listeners, time at which the
-- channel expires}, where they are known already.
local function emit(id, lines, head)
  if #lines == 0 then return end
  local last = redis.call('HINCRBY', job_key(id), 'events', #lines)
  local first = last - #lines + 1
  head = head or redis.call('HMGET', job_key(id), 'listeners', 'expire_at')
  local channel = 'ty:events:' .. id
  for i, line in ipairs(lines) do
    redis.call('XADD', channel, (first + i - 1) .. '-0', 'e', line)
  end
  if first == 1 then redis.call('EXPIREAT', channel, math.floor(head[2])) end
  for bus in string.gmatch(head[1] or '', '%S+') do
    tell(bus, 'e ' .. id .. ' ' .. first .. '\n' .. table.concat(lines, '\n'))
  end
end

local function step_line(status, stage, what)
  return 's{"status":"' .. status .. '","stage":"' .. stage .. '","state":"' .. what .. '","at":' .. num(now) .. '}'
end

-- Give a stage of a job to an owner. Returns {outcome}, or {'ok', attempt, number of record fields and values, fields
-- and values ..., payload names and values ...}, all of it strings.
local function claim(id, stage, owner, lease, most, reads)
  local job = job_key(id)
  local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner', stage .. '.lease', 'deadline',
    'detached', stage .. '.attempts')
  if not v[1] then return {'gone'} end
  if terminal(v[1]) then return {'over'} end
  if v[2] == 'done' then return {'done'} end
  local mine = v[2] == 'running' and v[3] == owner
  if v[2] == 'running' and not mine and tonumber(v[4]) > now then return {'held'} end
  if tonumber(v[5]) <= now then return {'expired'} end
  local attempt = tonumber(v[7] or '0')
  -- The same owner asks again when the answer to its first question was lost on the way, or for payloads that were too
  -- long to be handed to it.
  if not mine then
    attempt = attempt + 1
    if attempt > most then return {'exhausted'} end
  end
  redis.call('HSET', job, 'status', 'running', stage .. '.attempts', attempt, stage .. '.state', 'running',
    stage .. '.owner', owner, stage .. '.lease', num(now + lease), stage .. '.started', num(now))
  redis.call('ZADD', 'ty:watch', num(now + lease), id .. '|' .. stage)
  if v[6] == '1' and not mine then emit(id, {step_line('running', stage, 'started')}) end
  local out = redis.call('HGETALL', job)
  local fields = #out
  table.insert(out, 1, tostring(fields))
  table.insert(out, 1, tostring(attempt))
  table.insert(out, 1, 'ok')
  for _, name in ipairs(reads) do
    local value = redis.call('GET', payload_key(id, name))
    if value then
      out[#out + 1] = name
      out[#out + 1] = value
    end
  end
  return out
end

-- Lay a message and its claim where a worker's thread waits for them, as {their number, message, claim ...}.
local function hand(hands, body, claimed)
  local key = 'ty:hands:' .. hands
  redis.call('RPUSH', key, #claimed + 1, body, unpack(claimed))
  redis.call('EXPIRE', key, BUS_TTL_S)
end

-- The thread that began last to wait for work of this pool; nil if none waits.
local function waiting(pool)
  local latest = redis.call('ZPOPMAX', waiting_key(pool))
  if latest[1] and tonumber(latest[2]) > now then return latest[1] end
end

local function send(id, stage, queue, body, lost_after, again)
  local job = job_key(id)
  -- A message that is sent again keeps its age and its place: the oldest message is always the next to be popped.
  if again then
    redis.call('HSET', job, stage .. '.state', 'queued', stage .. '.owner', '')
    redis.call('HSETNX', job, stage .. '.sent', num(now))
    redis.call('RPUSH', queue, body)
  else
    redis.call('HSET', job, stage .. '.state', 'queued', stage .. '.owner', '', stage .. '.sent', num(now))
    redis.call('LPUSH', queue, body)
  end
  redis.call('ZADD', 'ty:watch', num(now + lost_after), id .. '|' .. stage)
end

-- What is laid before a thread is written to the append-only file once more.
local MOST_HANDED_BYTES = 8192

-- Send a stage for the first time: to a thread that waits for work of its kind, which spares it asking, or to its queue.
-- `message`: {stage, queue, pool, payloads that the stage reads}; `terms`: {lost_after, lease, most}. A thread asks by
-- itself for payloads that are long: it is handed {'ask'} in the place of its claim.
local function dispatch(id, message, body, terms)
  local hands = waiting(message[3])
  if hands then
    local bytes, reads = 0, message[4]
    for _, name in ipairs(reads) do bytes = bytes + redis.call('STRLEN', payload_key(id, name)) end
    if bytes > MOST_HANDED_BYTES then reads = {} end
    redis.call('HSET', job_key(id), message[1] .. '.sent', num(now))
    local claimed = claim(id, message[1], string.match(hands, '^%S+'), terms.lease, terms.most, reads)
    if claimed[1] == 'ok' then return hand(hands, body, bytes > MOST_HANDED_BYTES and {'ask'} or claimed) end
  end
  send(id, message[1], message[2], body, terms.lost_after, false)
end

local STAGES = {'render', 'generate', 'derender'}

-- End a job: its last events, its stages' owners told, its working data dropped, what remains kept for its ttl. Of a
-- detached job remains what was generated, and what its reading depends on.
local function conclude(id, status, failure, lines)
  local job = job_key(id)
  local head = redis.call('HMGET', job, 'ttl', 'detached', 'listeners', 'render.state', 'render.owner',
    'generate.state', 'generate.owner', 'derender.state', 'derender.owner')
  local ttl = tonumber(head[1])
  redis.call('HSET', job, 'status', status, 'ended', num(now), 'error', failure)
  lines[#lines + 1] = status == 'succeeded' and 'd{}' or 'e' .. failure
  emit(id, lines, {head[3], now + ttl})
  local watched = {id .. '|'}
  for i, stage in ipairs(STAGES) do
    local state, owner = head[2 + 2 * i], head[3 + 2 * i]
    if state and state ~= 'done' then watched[#watched + 1] = id .. '|' .. stage end
    if state == 'running' and owner then tell(owner, 'x ' .. id .. ' ' .. status) end
  end
  redis.call('ZREM', 'ty:watch', unpack(watched))
  redis.call('EXPIRE', job, ttl)
  redis.call('EXPIRE', 'ty:events:' .. id, ttl)
  local working = {payload_key(id, 'request'), payload_key(id, 'generate'), payload_key(id, 'checkpoint')}
  local generation = {'ty:tokens:' .. id, payload_key(id, 'prompt'), payload_key(id, 'context')}
  for _, key in ipairs(generation) do
    if head[2] == '1' then redis.call('EXPIRE', key, ttl) else working[#working + 1] = key end
  end
  redis.call('DEL', unpack(working))
end
