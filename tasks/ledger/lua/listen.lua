-- Send a job's future events to one more inbox.
--
-- call   id, inbox
-- reply  known: whether the job exists
-- keys   the job's hash
local job = job_key(call.id)
local listeners = redis.call('HGET', job, 'listeners')
if not listeners then return reply({known = false}) end
for inbox in string.gmatch(listeners, '%S+') do
  if inbox == call.inbox then return reply({known = true}) end
end
redis.call('HSET', job, 'listeners', listeners .. ' ' .. call.inbox)
return reply({known = true})
