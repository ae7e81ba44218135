-- ARGV: job id, stage, owner, queue, body, delay seconds, '1' if the attempt counts, lost after seconds.
-- Returns 'ok' or why the claim is lost.
local id, stage, owner, delay = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[6])
local job = job_key(id)
local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner')
if not v[1] then return 'gone' end
if terminal(v[1]) then return v[1] end
if v[2] ~= 'running' or v[3] ~= owner then return 'taken' end
if ARGV[7] ~= '1' then redis.call('HINCRBY', job, stage .. '.attempts', -1) end
if delay > 0 then
  redis.call('HSET', job, stage .. '.state', 'delayed', stage .. '.owner', '', stage .. '.lease', num(now + delay))
  redis.call('ZADD', 'ty:watch', num(now + delay), id .. '|' .. stage)
else
  send(id, stage, ARGV[4], ARGV[5], tonumber(ARGV[8]), true)
end
return 'ok'
