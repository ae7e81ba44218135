-- ARGV: owner, lease seconds, error JSON for jobs that nobody waits for, then job id and stage in turn.
-- Returns the positions (from 0) of the lost ones.
local owner, lease, abandoned = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local lost = {}

-- Whether a process that waits for the job is alive; a detached job needs none.
local function wanted(detached, listeners)
  if detached == '1' or listeners == '' then return true end
  for bus in string.gmatch(listeners, '%S+') do
    if redis.call('EXISTS', 'ty:worker:' .. bus) == 1 then return true end
  end
  return false
end

for i = 4, #ARGV, 2 do
  local id, stage = ARGV[i], ARGV[i + 1]
  local job = job_key(id)
  local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner', 'detached', 'listeners')
  if v[1] and not terminal(v[1]) and not wanted(v[4], v[5]) then
    conclude(id, 'cancelled', abandoned, {})
    lost[#lost + 1] = (i - 4) / 2
  elseif v[1] and not terminal(v[1]) and v[2] == 'running' and v[3] == owner then
    redis.call('HSET', job, stage .. '.lease', num(now + lease))
    redis.call('ZADD', 'ty:watch', num(now + lease), id .. '|' .. stage)
  else
    lost[#lost + 1] = (i - 4) / 2
  end
end
return lost
