-- Redispatch a stage if nobody has it: its lease ran out, its delay is over, or the broker lost the message.
--
-- call   id, message ({stage, queue, body}), lost_after (seconds)
-- reply  sent: whether it was redispatched
-- keys   the job's hash, the watch set, the queue and the hash of the job whose message is next in it
--
-- Queues are first in, first out: a queued message is lost only if the next one to be popped is younger.
local id, message, job = call.id, call.message, job_key(call.id)
local stage, member = message.stage, watch_member(call.id, message.stage)
local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.lease', stage .. '.sent')
local status, state, until_, sent = v[1], v[2], v[3], tonumber(v[4])
if not status or TERMINAL[status] or not state or state == STATE.DONE then
  redis.call('ZREM', KEY.WATCH, member)
  return reply({sent = false})
end

local function still_waiting()
  local next_up = redis.call('LINDEX', message.queue, -1)
  if not next_up then return false end
  local ok, envelope = pcall(cjson.decode, next_up)
  local of = ok and envelope.headers and envelope.headers.job
  local its_sent = of and redis.call('HGET', job_key(of), envelope.headers.stage .. '.sent')
  return not its_sent or tonumber(its_sent) <= sent
end

if state == STATE.RUNNING or state == STATE.DELAYED then
  if tonumber(until_) > now then
    redis.call('ZADD', KEY.WATCH, until_, member)
    return reply({sent = false})
  end
elseif still_waiting() then
  redis.call('ZADD', KEY.WATCH, num(now + math.min(30, math.max(call.lost_after, (now - sent) / 2))), member)
  return reply({sent = false})
end
send(id, message, call.lost_after, true)
return reply({sent = true})
