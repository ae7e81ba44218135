-- ARGV: most, seconds until one that was handed out is handed out again. Returns watch members.
local members = redis.call('ZRANGEBYSCORE', 'ty:watch', '-inf', num(now), 'LIMIT', 0, tonumber(ARGV[1]))
local out = {}
for _, member in ipairs(members) do
  local id = string.match(member, '^(.*)|')
  if redis.call('EXISTS', job_key(id)) == 1 then
    redis.call('ZADD', 'ty:watch', num(now + tonumber(ARGV[2])), member)
    out[#out + 1] = member
  else
    redis.call('ZREM', 'ty:watch', member)
  end
end
return out
