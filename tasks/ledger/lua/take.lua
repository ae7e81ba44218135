-- ARGV: hands, seconds to wait, lease seconds, most attempts, number of pools, pools ..., queues in the order in which they
-- are looked at ...
-- `hands` is a thread of a worker, '<owner> <number>'. Returns the next message of these queues and its claim for that
-- worker, {message, claim ...}; if there is none, the thread counts as waiting for these pools' work for that long.
local hands, wait, pools = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[5])
local owner = string.match(hands, '^%S+')
local pop = {'LMPOP', #ARGV - 5 - pools, unpack(ARGV, 6 + pools)}
pop[#pop + 1] = 'RIGHT'
local popped = redis.call(unpack(pop))
while popped do
  local body = popped[2][1]
  local read, message = pcall(cjson.decode, body)
  local headers = read and message.headers or {}
  if headers.job then
    local claimed = claim(headers.job, headers.stage, owner, tonumber(ARGV[3]), tonumber(ARGV[4]), headers.reads)
    local outcome = claimed[1]
    if outcome == 'ok' or outcome == 'expired' or outcome == 'exhausted' then return {body, unpack(claimed)} end
  end
  popped = redis.call(unpack(pop))
end
for i = 6, 5 + pools do
  local key = waiting_key(ARGV[i])
  redis.call('ZADD', key, num(now + wait), hands)
  redis.call('EXPIRE', key, BUS_TTL_S)
end
