-- ARGV: job id, stage, owner, lease seconds, most attempts, payload names ...
-- Returns {outcome} or {'ok', attempt, HGETALL, payload values ...}.
local id, stage, owner = ARGV[1], ARGV[2], ARGV[3]
local lease, most = tonumber(ARGV[4]), tonumber(ARGV[5])
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
-- The same owner asks again only when the answer to its first question was lost on the way.
if not mine then
  attempt = attempt + 1
  if attempt > most then return {'exhausted'} end
  redis.call('HSET', job, stage .. '.attempts', attempt)
end
redis.call('HSET', job, 'status', 'running', stage .. '.state', 'running', stage .. '.owner', owner,
  stage .. '.lease', num(now + lease), stage .. '.started', num(now))
redis.call('ZADD', 'ty:watch', num(now + lease), id .. '|' .. stage)
if v[6] == '1' and not mine then emit(id, {step_line('running', stage, 'started')}) end
local out = {'ok', attempt, redis.call('HGETALL', job)}
for i = 6, #ARGV do out[#out + 1] = redis.call('GET', payload_key(id, ARGV[i])) end
return out
