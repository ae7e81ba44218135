-- Renew a worker's leases, and cancel the jobs that nobody waits for any more.
--
-- call   owner, lease (seconds), abandoned (error JSON for a job that nobody waits for), claims ({job id, stage} each)
-- reply  lost: positions in `claims`, from 0, of those that the worker no longer holds
-- keys   the jobs' hashes, the watch set, the keys of live processes; as `conclude` for cancelled jobs
local lost = {}

-- Whether a process that waits for the job is alive. A detached job needs none.
local function wanted(detached, listeners)
  if detached == '1' or listeners == '' then return true end
  for inbox in string.gmatch(listeners, '%S+') do
    if redis.call('EXISTS', KEY.WORKER .. inbox) == 1 then return true end
  end
  return false
end

for i, claim in ipairs(call.claims) do
  local id, stage = claim[1], claim[2]
  local job = job_key(id)
  local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner', 'detached', 'listeners')
  local over = not v[1] or TERMINAL[v[1]]
  if not over and not wanted(v[4], v[5]) then
    conclude(id, STATUS.CANCELLED, call.abandoned, {})
    lost[#lost + 1] = i - 1
  elseif refusal(v[1], v[2], v[3], call.owner) then
    lost[#lost + 1] = i - 1
  else
    local lease = num(now + call.lease)
    redis.call('HSET', job, stage .. '.lease', lease)
    redis.call('ZADD', KEY.WATCH, lease, watch_member(id, stage))
  end
end
return reply({lost = lost})
