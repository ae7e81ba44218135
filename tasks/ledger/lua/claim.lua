-- ARGV: job id, stage, owner, lease seconds, most attempts, payload names ...
-- Returns what `claim` of the prelude does.
local reads = {}
for i = 6, #ARGV do reads[#reads + 1] = ARGV[i] end
return claim(ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), reads)
