-- ARGV: job id, bus. Returns 1, or 0 if the job is unknown.
local job = job_key(ARGV[1])
local listeners = redis.call('HGET', job, 'listeners')
if not listeners then return 0 end
for bus in string.gmatch(listeners, '%S+') do
  if bus == ARGV[2] then return 1 end
end
redis.call('HSET', job, 'listeners', listeners .. ' ' .. ARGV[2])
return 1
