-- What the reaper must check now; no other caller gets the same entries before `again_after` has passed.
--
-- call   most (members), again_after (seconds)
-- reply  members: `<job>|<stage>` each, or `<job>|` for a deadline
-- keys   the watch set, jobs' hashes
local members = redis.call('ZRANGEBYSCORE', KEY.WATCH, '-inf', num(now), 'LIMIT', 0, call.most)
local due = {}
for _, member in ipairs(members) do
  local id = string.match(member, '^(.*)|')
  if redis.call('EXISTS', job_key(id)) == 1 then
    redis.call('ZADD', KEY.WATCH, num(now + call.again_after), member)
    due[#due + 1] = member
  else
    redis.call('ZREM', KEY.WATCH, member)
  end
end
return reply({members = due})
