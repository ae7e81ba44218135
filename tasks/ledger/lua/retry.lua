-- Give a claim back: the stage is redispatched, at once or after a delay.
--
-- call   id, owner, message ({stage, queue, body}), delay (seconds), counted (whether the attempt counts), most (attempts
--        without progress), lost_after
-- reply  outcome: 'ok'; 'exhausted' if the attempt counts and was the last one; or why the claim is lost: 'gone', a
--        terminal status or 'taken'
-- keys   the job's hash, the watch set, the queue
local id, message, job = call.id, call.message, job_key(call.id)
local stage = message.stage
local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner', stage .. '.fruitless')
local lost = refusal(v[1], v[2], v[3], call.owner)
if lost then return reply({outcome = lost}) end
local fruitless = tonumber(v[4] or '0')
if call.counted and fruitless >= call.most then return reply({outcome = 'exhausted'}) end
if not call.counted and fruitless > 0 then redis.call('HINCRBY', job, stage .. '.fruitless', -1) end
if call.delay > 0 then
  local due = num(now + call.delay)
  redis.call('HSET', job, stage .. '.state', STATE.DELAYED, stage .. '.owner', '', stage .. '.lease', due)
  redis.call('ZADD', KEY.WATCH, due, watch_member(id, stage))
else
  send(id, message, call.lost_after, true)
end
return reply({outcome = 'ok'})
