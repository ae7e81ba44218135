-- Write under a claim, all or nothing: payloads, counts, token chunks, events, the end of the stage, the messages of the
-- next stages, the end of the job.
--
-- call   id, stage, owner, payloads (by name), counts (record fields), tokens and tokens_from (chunks, and how many the
--        channel holds before them), events (lines), consumed ({before, after}, or absent), done, messages ({stage,
--        queue, body} each), status (absent unless the job ends), error (JSON, or ''), lost_after (seconds)
-- reply  outcome: 'ok', or why the claim is lost: 'gone', a terminal status, 'taken' or 'behind'
-- keys   the job's hash, payloads and channels, the watch set, queues, inboxes
--
-- A commit that was applied before answers 'ok' and changes nothing.
local id, stage, job = call.id, call.stage, job_key(call.id)
local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner', 'expire_at', 'tokens', 'read',
  'detached')
local status, state, holder, expire_at, detached = v[1], v[2], v[3], v[4], v[7]
local have, read = tonumber(v[5] or '0'), tonumber(v[6] or '0')
local ended_by_this = call.status and status == call.status
if holder == call.owner and (ended_by_this or (call.done and state == STATE.DONE)) then return reply({outcome = 'ok'}) end
local lost = refusal(status, state, holder, call.owner)
if lost then return reply({outcome = lost}) end

local tokens, consumed = call.tokens, call.consumed
if #tokens > 0 and call.tokens_from + #tokens <= have then return reply({outcome = 'ok'}) end
if #tokens > 0 and call.tokens_from ~= have then return reply({outcome = 'behind'}) end
if consumed then
  if read >= consumed[2] and consumed[2] > consumed[1] then return reply({outcome = 'ok'}) end
  if read ~= consumed[1] then return reply({outcome = 'behind'}) end
  redis.call('HSET', job, 'read', consumed[2])
end
for name, value in pairs(call.payloads) do
  redis.call('SET', payload_key(id, name), value, 'EXAT', math.floor(expire_at))
end
for name, value in pairs(call.counts) do redis.call('HSET', job, name, value) end
if #tokens > 0 or (consumed and consumed[2] > consumed[1]) then redis.call('HSET', job, stage .. '.fruitless', 0) end
if #tokens > 0 then
  local channel = KEY.TOKENS .. id
  for i, chunk in ipairs(tokens) do redis.call('XADD', channel, (have + i) .. '-0', 'c', chunk) end
  if have == 0 then redis.call('EXPIREAT', channel, math.floor(expire_at)) end
  redis.call('HSET', job, 'tokens', have + #tokens)
  local follower = redis.call('HMGET', job, 'derender.state', 'derender.owner')
  if follower[1] == STATE.RUNNING then
    tell(follower[2], 't ' .. id .. ' ' .. (have + 1) .. '\n' .. table.concat(tokens, '\n'))
  end
end
if not call.status then emit(id, call.events) end
if call.done then
  redis.call('HSET', job, stage .. '.state', STATE.DONE, stage .. '.ended', num(now))
  redis.call('ZREM', KEY.WATCH, watch_member(id, stage))
  if detached == '1' and not call.status then emit(id, {step_line(STATUS.RUNNING, stage, STATE.DONE)}) end
end
for _, message in ipairs(call.messages) do send(id, message, call.lost_after, false) end
if call.status then conclude(id, call.status, call.error, call.events) end
return reply({outcome = 'ok'})
