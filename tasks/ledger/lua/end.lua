-- ARGV: job id, status, error JSON. Returns 1 if this ended the job.
local status = redis.call('HGET', job_key(ARGV[1]), 'status')
if not status then
  redis.call('ZREM', 'ty:watch', ARGV[1] .. '|')
  return 0
end
if terminal(status) then return 0 end
conclude(ARGV[1], ARGV[2], ARGV[3], {})
return 1
