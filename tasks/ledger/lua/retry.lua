-- Give a claim back: the stage is redispatched, at once or after a delay.
--
-- call   id, owner, message ({stage, queue, body}), delay (seconds), counted (whether the attempt counts), lost_after
-- reply  outcome: 'ok', or why the claim is lost: 'gone', a terminal status or 'taken'
-- keys   the job's hash, the watch set, the queue
local id, message, job = call.id, call.message, job_key(call.id)
local stage = message.stage
local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner')
local lost = refusal(v[1], v[2], v[3], call.owner)
if lost then return reply({outcome = lost}) end
if not call.counted then redis.call('HINCRBY', job, stage .. '.attempts', -1) end
if call.delay > 0 then
  local due = num(now + call.delay)
  redis.call('HSET', job, stage .. '.state', STATE.DELAYED, stage .. '.owner', '', stage .. '.lease', due)
  redis.call('ZADD', KEY.WATCH, due, watch_member(id, stage))
else
  send(id, message, call.lost_after, true)
end
return reply({outcome = 'ok'})
