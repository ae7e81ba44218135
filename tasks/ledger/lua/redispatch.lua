-- ARGV: job id, stage, queue, body, lost after seconds. Returns 1 if the message was sent again.
local id, stage, queue, lost_after = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[5])
local job, member = job_key(id), id .. '|' .. stage
local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.lease', stage .. '.sent')
if not v[1] or terminal(v[1]) or v[2] == 'done' or not v[2] then
  redis.call('ZREM', 'ty:watch', member)
  return 0
end
if v[2] == 'running' or v[2] == 'delayed' then
  if tonumber(v[3]) > now then
    redis.call('ZADD', 'ty:watch', v[3], member)
    return 0
  end
else
  -- Queued. Queues are first in, first out: while the next message to be popped is not younger than ours, ours waits.
  local sent = tonumber(v[4])
  local head = redis.call('LINDEX', queue, -1)
  if head then
    local ok, envelope = pcall(cjson.decode, head)
    local of = ok and envelope.headers and envelope.headers.job
    local head_sent = of and redis.call('HGET', job_key(of), envelope.headers.stage .. '.sent')
    if not head_sent or tonumber(head_sent) <= sent then
      redis.call('ZADD', 'ty:watch', num(now + math.min(30, math.max(lost_after, (now - sent) / 2))), member)
      return 0
    end
  end
end
send(id, stage, queue, ARGV[4], lost_after, true)
return 1
