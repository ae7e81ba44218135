-- ARGV: header JSON, then one value for each payload name, then message bodies. Returns {outcome, job id, digest}.
local h = cjson.decode(ARGV[1])
if h.idempotency_key ~= '' then
  local earlier = redis.call('GET', 'ty:idempotency:' .. h.idempotency_key)
  local digest = earlier and redis.call('HGET', job_key(earlier), 'digest')
  if digest then return {'repeat', earlier, digest} end
end
local job = job_key(h.id)
if redis.call('EXISTS', job) == 1 then return {'accepted', h.id, h.digest} end
for _, queue in ipairs(h.queues) do
  if redis.call('LLEN', queue) >= h.max_queued then return {'full', '', ''} end
end
local deadline = now + h.deadline_in
local expire_at = math.ceil(deadline + h.ttl + 60)
redis.call('HSET', job, 'status', 'queued', 'endpoint', h.endpoint, 'model', h.model, 'class', h.class,
  'stream', h.stream, 'followed', h.followed, 'detached', h.detached, 'stages', h.stages, 'created', num(now), 'deadline', num(deadline),
  'ttl', h.ttl, 'expire_at', expire_at, 'listeners', h.listener, 'digest', h.digest, 'metadata', h.metadata)
redis.call('EXPIREAT', job, expire_at)
for i, name in ipairs(h.payloads) do
  redis.call('SET', payload_key(h.id, name), ARGV[1 + i], 'EXAT', expire_at)
end
redis.call('ZADD', 'ty:watch', num(deadline), h.id .. '|')
if h.detached == 1 then
  redis.call('ZADD', 'ty:jobs', num(now), h.id)
  emit(h.id, {step_line('queued', h.messages[1][1], 'queued')})
end
if h.idempotency_key ~= '' then
  redis.call('SET', 'ty:idempotency:' .. h.idempotency_key, h.id, 'EXAT', expire_at)
end
if h.request_id ~= '' then
  redis.call('SADD', 'ty:request:' .. h.request_id, h.id)
  redis.call('EXPIREAT', 'ty:request:' .. h.request_id, expire_at)
end
for i, message in ipairs(h.messages) do
  dispatch(h.id, message, ARGV[1 + #h.payloads + i], h)
end
return {'accepted', h.id, h.digest}
