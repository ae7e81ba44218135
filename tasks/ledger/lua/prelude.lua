-- The beginning of every script. `tasks.ledger.scripts` puts the names shared with Python before it: KEY, STATUS,
-- TERMINAL, STATE and STAGES.
--
-- A script has one argument and one reply, both MessagePack: `call` is what Python sent, and each script ends in
-- `return reply(...)`. Keys are computed from ids, because broker, ledger and channels live in one Redis database.
-- Times are seconds since the epoch, on Redis's own clock.
local call = cmsgpack.unpack(ARGV[1])
local reply = cmsgpack.pack
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1e6
local INBOX_TTL_S = 60

local function num(x) return string.format('%.6f', x) end
local function job_key(id) return KEY.JOB .. id end
local function payload_key(id, name) return KEY.PAYLOAD .. id .. ':' .. name end
local function watch_member(id, stage) return id .. '|' .. stage end

-- Push a message to a process's inbox. A waiting process pops it at once; an inbox that nobody reads expires.
local function tell(inbox, line)
  local key = KEY.INBOX .. inbox
  if redis.call('RPUSH', key, line) > 1 then redis.call('EXPIRE', key, INBOX_TTL_S) end
end

-- Append lines to the events channel and send them to every listener. `head` is {listeners, time at which the channel
-- expires} where the caller has read them already.
local function emit(id, lines, head)
  if #lines == 0 then return end
  local last = redis.call('HINCRBY', job_key(id), 'events', #lines)
  local first = last - #lines + 1
  head = head or redis.call('HMGET', job_key(id), 'listeners', 'expire_at')
  local channel = KEY.EVENTS .. id
  for i, line in ipairs(lines) do
    redis.call('XADD', channel, (first + i - 1) .. '-0', 'e', line)
  end
  if first == 1 then redis.call('EXPIREAT', channel, math.floor(head[2])) end
  for inbox in string.gmatch(head[1] or '', '%S+') do
    tell(inbox, 'e ' .. id .. ' ' .. first .. '\n' .. table.concat(lines, '\n'))
  end
end

-- The event for a change of a stage's state.
local function step_line(status, stage, what)
  return 's{"status":"' .. status .. '","stage":"' .. stage .. '","state":"' .. what .. '","at":' .. num(now) .. '}'
end

-- Put a stage's message into its queue. `message` is {stage, queue, body}. With `again` (a redispatch) it keeps its age
-- and goes to the front: the oldest message is always the next to be popped.
local function send(id, message, lost_after, again)
  local job, stage = job_key(id), message.stage
  if again then
    redis.call('HSET', job, stage .. '.state', STATE.QUEUED, stage .. '.owner', '')
    redis.call('HSETNX', job, stage .. '.sent', num(now))
    redis.call('RPUSH', message.queue, message.body)
  else
    redis.call('HSET', job, stage .. '.state', STATE.QUEUED, stage .. '.owner', '', stage .. '.sent', num(now))
    redis.call('LPUSH', message.queue, message.body)
  end
  redis.call('ZADD', KEY.WATCH, num(now + lost_after), watch_member(id, stage))
end

-- Why `owner` may not write to this stage: 'gone', a terminal status, or 'taken'; nil if it may. `status`, `state` and
-- `holder` are the job's and the stage's.
local function refusal(status, state, holder, owner)
  if not status then return 'gone' end
  if TERMINAL[status] then return status end
  if state ~= STATE.RUNNING or holder ~= owner then return 'taken' end
end

-- End a job: write its last events, notify the owners of its stages, delete its working data, and keep the rest for its
-- TTL. A detached job keeps its generated tokens and what is needed to derender them again.
local function conclude(id, status, failure, lines)
  local job = job_key(id)
  local fields = {'ttl', 'detached', 'listeners'}
  for _, stage in ipairs(STAGES) do
    fields[#fields + 1] = stage .. '.state'
    fields[#fields + 1] = stage .. '.owner'
  end
  local head = redis.call('HMGET', job, unpack(fields))
  local ttl = tonumber(head[1])
  redis.call('HSET', job, 'status', status, 'ended', num(now), 'error', failure)
  lines[#lines + 1] = status == STATUS.SUCCEEDED and 'd{}' or 'e' .. failure
  emit(id, lines, {head[3], now + ttl})
  local watched = {watch_member(id, '')}
  for i, stage in ipairs(STAGES) do
    local state, owner = head[2 + 2 * i], head[3 + 2 * i]
    if state and state ~= STATE.DONE then watched[#watched + 1] = watch_member(id, stage) end
    if state == STATE.RUNNING and owner then tell(owner, 'x ' .. id .. ' ' .. status) end
  end
  redis.call('ZREM', KEY.WATCH, unpack(watched))
  redis.call('EXPIRE', job, ttl)
  redis.call('EXPIRE', KEY.EVENTS .. id, ttl)
  local working = {payload_key(id, 'request'), payload_key(id, 'generate'), payload_key(id, 'checkpoint')}
  local generation = {KEY.TOKENS .. id, payload_key(id, 'prompt'), payload_key(id, 'context')}
  for _, key in ipairs(generation) do
    if head[2] == '1' then redis.call('EXPIRE', key, ttl) else working[#working + 1] = key end
  end
  redis.call('DEL', unpack(working))
end
