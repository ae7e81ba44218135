-- Give a stage of a job to a worker, with the payloads that the stage reads.
--
-- call   id, stage, owner, lease (seconds), most (attempts without progress), reads (payload names)
-- reply  outcome: 'ok', 'gone', 'over', 'done', 'held', 'expired' or 'exhausted'
--        with 'ok': attempt, record (the job's hash, names and values in turn), payloads (by name)
-- keys   the job's hash, its payloads, the watch set, its events channel
--
-- The owner of a claim may claim again: the reply to its first call may have been lost.
-- An attempt is fruitless until a commit shows progress (`commit.lua`).
local id, stage, job = call.id, call.stage, job_key(call.id)
local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner', stage .. '.lease', 'deadline',
  'detached', stage .. '.attempts', stage .. '.fruitless')
local status, state, holder, lease_until, deadline, detached = v[1], v[2], v[3], v[4], v[5], v[6]
if not status then return reply({outcome = 'gone'}) end
if TERMINAL[status] then return reply({outcome = 'over'}) end
if state == STATE.DONE then return reply({outcome = 'done'}) end
local mine = state == STATE.RUNNING and holder == call.owner
if state == STATE.RUNNING and not mine and tonumber(lease_until) > now then return reply({outcome = 'held'}) end
if tonumber(deadline) <= now then return reply({outcome = 'expired'}) end
local attempt, fruitless = tonumber(v[7] or '0'), tonumber(v[8] or '0')
if not mine then
  attempt, fruitless = attempt + 1, fruitless + 1
  if fruitless > call.most then return reply({outcome = 'exhausted'}) end
end

local lease = num(now + call.lease)
redis.call('HSET', job, 'status', STATUS.RUNNING, stage .. '.attempts', attempt,
  stage .. '.fruitless', fruitless, stage .. '.state', STATE.RUNNING,
  stage .. '.owner', call.owner, stage .. '.lease', lease, stage .. '.started', num(now))
redis.call('ZADD', KEY.WATCH, lease, watch_member(id, stage))
if detached == '1' and not mine then emit(id, {step_line(STATUS.RUNNING, stage, 'started')}) end
local payloads = {}
for _, name in ipairs(call.reads) do payloads[name] = redis.call('GET', payload_key(id, name)) or nil end
return reply({outcome = 'ok', attempt = attempt, record = redis.call('HGETALL', job), payloads = payloads})
