-- Shared by every script. Keys are computed from ids: broker, ledger and channels live in one Redis database.
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local BUS_TTL_S = 60

local function num(x) return string.format('%.6f', x) end
local function job_key(id) return 'ty:job:' .. id end
local function payload_key(id, name) return 'ty:payload:' .. id .. ':' .. name end
local function bus_key(name) return 'ty:bus:' .. name end
local function terminal(status)
  return status == 'succeeded' or status == 'failed' or status == 'cancelled' or status == 'expired'
end

local function tell(bus, line)
  redis.call('RPUSH', bus_key(bus), line)
  redis.call('EXPIRE', bus_key(bus), BUS_TTL_S)
end

-- Append lines to the events channel and send them to everybody who listens.
local function emit(id, lines)
  if #lines == 0 then return end
  local last = redis.call('HINCRBY', job_key(id), 'events', #lines)
  local first = last - #lines + 1
  local head = redis.call('HMGET', job_key(id), 'listeners', 'expire_at')
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

local function send(id, stage, queue, body, lost_after, again)
  local job = job_key(id)
  redis.call('HSET', job, stage .. '.state', 'queued', stage .. '.owner', '')
  -- A message that is sent again keeps its age and its place: the oldest message is always the next to be popped.
  if again then
    redis.call('HSETNX', job, stage .. '.sent', num(now))
    redis.call('RPUSH', queue, body)
  else
    redis.call('HSET', job, stage .. '.sent', num(now))
    redis.call('LPUSH', queue, body)
  end
  redis.call('ZADD', 'ty:watch', num(now + lost_after), id .. '|' .. stage)
end

-- End a job: its last events, its stages' owners told, its working data dropped, what remains kept for its ttl. Of a
-- detached job remains what was generated, and what its reading depends on.
local function conclude(id, status, failure, lines)
  local job = job_key(id)
  local head = redis.call('HMGET', job, 'stages', 'ttl', 'detached')
  redis.call('HSET', job, 'status', status, 'ended', num(now))
  if failure ~= '' then redis.call('HSET', job, 'error', failure) end
  lines[#lines + 1] = status == 'succeeded' and 'd{}' or 'e' .. failure
  emit(id, lines)
  redis.call('ZREM', 'ty:watch', id .. '|')
  for stage in string.gmatch(head[1], '%S+') do
    local record = redis.call('HMGET', job, stage .. '.state', stage .. '.owner')
    if record[1] ~= 'done' then redis.call('ZREM', 'ty:watch', id .. '|' .. stage) end
    if record[1] == 'running' and record[2] then tell(record[2], 'x ' .. id .. ' ' .. status) end
  end
  local ttl = tonumber(head[2])
  redis.call('EXPIRE', job, ttl)
  redis.call('EXPIRE', 'ty:events:' .. id, ttl)
  redis.call('DEL', payload_key(id, 'request'), payload_key(id, 'generate'), payload_key(id, 'checkpoint'))
  local generation = {'ty:tokens:' .. id, payload_key(id, 'prompt'), payload_key(id, 'context')}
  if head[3] == '1' then
    for _, key in ipairs(generation) do redis.call('EXPIRE', key, ttl) end
  else
    redis.call('DEL', unpack(generation))
  end
end
