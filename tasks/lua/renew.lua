-- ARGV: owner, lease seconds, then job id and stage in turn. Returns the positions (from 0) of the lost ones.
local owner, lease = ARGV[1], tonumber(ARGV[2])
local lost = {}
for i = 3, #ARGV, 2 do
  local id, stage = ARGV[i], ARGV[i + 1]
  local job = job_key(id)
  local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner')
  if v[1] and not terminal(v[1]) and v[2] == 'running' and v[3] == owner then
    redis.call('HSET', job, stage .. '.lease', num(now + lease))
    redis.call('ZADD', 'ty:watch', num(now + lease), id .. '|' .. stage)
  else
    lost[#lost + 1] = (i - 3) / 2
  end
end
return lost
