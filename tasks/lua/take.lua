-- ARGV: hands, pool, seconds to wait, lease seconds, most attempts, queues in the order in which they are looked at ...
-- `hands` is a thread of a worker, '<owner> <number>'. The next message of these queues, claimed for its worker, is laid
-- where the thread reads; if there is none, the thread counts as waiting for the pool's work for that long.
local hands, pool, wait = ARGV[1], ARGV[2], tonumber(ARGV[3])
local owner = string.match(hands, '^%S+')
local pop = {'LMPOP', #ARGV - 5, unpack(ARGV, 6)}
pop[#pop + 1] = 'RIGHT'
local popped = redis.call(unpack(pop))
while popped do
  local body = popped[2][1]
  local read, message = pcall(cjson.decode, body)
  local headers = read and message.headers or {}
  if headers.job then
    local claimed = claim(headers.job, headers.stage, owner, tonumber(ARGV[4]), tonumber(ARGV[5]), headers.reads)
    local outcome = claimed[1]
    if outcome == 'ok' or outcome == 'expired' or outcome == 'exhausted' then return hand(hands, body, claimed) end
  end
  popped = redis.call(unpack(pop))
end
if wait > 0 then redis.call('ZADD', 'ty:waiting:' .. pool, num(now + wait), hands) end
