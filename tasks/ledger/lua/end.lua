-- End a job without a claim.
--
-- call   id, status (a terminal one), error (JSON, or '')
-- reply  ended: whether this call ended it
-- keys   as `conclude` in the prelude
local status = redis.call('HGET', job_key(call.id), 'status')
if not status then redis.call('ZREM', KEY.WATCH, watch_member(call.id, '')) end
if not status or TERMINAL[status] then return reply({ended = false}) end
conclude(call.id, call.status, call.error, {})
return reply({ended = true})
