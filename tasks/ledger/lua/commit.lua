-- ARGV: header JSON, then payload values, token chunks, event lines and message bodies, in that order.
-- Returns 'ok', or why the claim is lost. A commit that was applied before answers 'ok' and changes nothing.
local h = cjson.decode(ARGV[1])
local id, stage = h.id, h.stage
local job = job_key(id)
local v = redis.call('HMGET', job, 'status', stage .. '.state', stage .. '.owner', 'expire_at', 'tokens', 'read',
  'detached')
if not v[1] then return 'gone' end
if v[3] == h.owner and ((h.status and v[1] == h.status) or (h.done and v[2] == 'done')) then return 'ok' end
if terminal(v[1]) then return v[1] end
if v[2] ~= 'running' or v[3] ~= h.owner then return 'taken' end

local at = 2
local function take(n)
  local values = {}
  for i = 1, n do values[i] = ARGV[at + i - 1] end
  at = at + n
  return values
end
local payloads, chunks, lines, bodies = take(#h.payloads), take(h.n_tokens), take(h.n_events), take(#h.messages)

local have = tonumber(v[5] or '0')
if #chunks > 0 and h.tokens_from + #chunks <= have then return 'ok' end
if h.consumed then
  local read = tonumber(v[6] or '0')
  if read >= h.consumed[2] and h.consumed[2] > h.consumed[1] then return 'ok' end
  if read ~= h.consumed[1] then return 'behind' end
  redis.call('HSET', job, 'read', h.consumed[2])
end
for i, name in ipairs(h.payloads) do
  redis.call('SET', payload_key(id, name), payloads[i], 'EXAT', math.floor(v[4]))
end
for name, value in pairs(h.fields) do redis.call('HSET', job, name, value) end
if #chunks > 0 then
  if h.tokens_from == have then
    local channel = 'ty:tokens:' .. id
    for i, chunk in ipairs(chunks) do redis.call('XADD', channel, (have + i) .. '-0', 'c', chunk) end
    if have == 0 then redis.call('EXPIREAT', channel, math.floor(v[4])) end
    redis.call('HSET', job, 'tokens', have + #chunks)
    local follower = redis.call('HMGET', job, 'derender.state', 'derender.owner')
    if follower[1] == 'running' then
      tell(follower[2], 't ' .. id .. ' ' .. (have + 1) .. '\n' .. table.concat(chunks, '\n'))
    end
  else
    return 'behind'
  end
end
if not h.status then emit(id, lines) end
if h.done then
  redis.call('HSET', job, stage .. '.state', 'done', stage .. '.ended', num(now))
  redis.call('ZREM', 'ty:watch', id .. '|' .. stage)
  if v[7] == '1' and not h.status then emit(id, {step_line('running', stage, 'done')}) end
end
for i, message in ipairs(h.messages) do
  dispatch(id, message, bodies[i], h)
end
if h.status then conclude(id, h.status, h.error, lines) end
return 'ok'
