-- ARGV: queues, first served first. Returns the oldest message of the first queue that has one, or nothing.
for _, queue in ipairs(ARGV) do
  local message = redis.call('RPOP', queue)
  if message then return message end
end
return false
