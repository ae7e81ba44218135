-- Accept a job and dispatch its first stages.
--
-- call   id, record (fields of the job's hash), deadline_in and ttl (seconds), queues and max_queued, payloads (by name),
--        messages ({stage, queue, body} each), detached, idempotency_key, request_id, lost_after (seconds)
-- reply  outcome: 'accepted', 'full' or 'repeat'; id: the job's, or the earlier job's with the same idempotency key;
--        digest: the digest of that job's request
-- keys   the job's hash, payloads and events channel, the watch set, queues, the list of jobs, the idempotency key,
--        the set of the client's request id
if call.idempotency_key ~= '' then
  local earlier = redis.call('GET', KEY.IDEMPOTENCY .. call.idempotency_key)
  local digest = earlier and redis.call('HGET', job_key(earlier), 'digest')
  if digest then return reply({outcome = 'repeat', id = earlier, digest = digest}) end
end
local job = job_key(call.id)
local accepted = {outcome = 'accepted', id = call.id, digest = call.record.digest}
if redis.call('EXISTS', job) == 1 then return reply(accepted) end
for _, queue in ipairs(call.queues) do
  if redis.call('LLEN', queue) >= call.max_queued then return reply({outcome = 'full', id = '', digest = ''}) end
end

local deadline = now + call.deadline_in
local expire_at = math.ceil(deadline + call.ttl + 60)
local fields = {'status', STATUS.QUEUED, 'created', num(now), 'deadline', num(deadline), 'ttl', call.ttl,
  'expire_at', expire_at}
for name, value in pairs(call.record) do
  fields[#fields + 1] = name
  fields[#fields + 1] = value
end
redis.call('HSET', job, unpack(fields))
redis.call('EXPIREAT', job, expire_at)
for name, value in pairs(call.payloads) do redis.call('SET', payload_key(call.id, name), value, 'EXAT', expire_at) end
redis.call('ZADD', KEY.WATCH, num(deadline), watch_member(call.id, ''))
if call.detached then
  redis.call('ZADD', KEY.JOBS, num(now), call.id)
  emit(call.id, {step_line(STATUS.QUEUED, call.messages[1].stage, STATE.QUEUED)})
end
if call.idempotency_key ~= '' then
  redis.call('SET', KEY.IDEMPOTENCY .. call.idempotency_key, call.id, 'EXAT', expire_at)
end
if call.request_id ~= '' then
  redis.call('SADD', KEY.REQUEST .. call.request_id, call.id)
  redis.call('EXPIREAT', KEY.REQUEST .. call.request_id, expire_at)
end
for _, message in ipairs(call.messages) do send(call.id, message, call.lost_after, false) end
return reply(accepted)
