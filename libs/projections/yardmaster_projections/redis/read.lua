-- Reads of one moment, in one step; it also runs in a full Redis, which queues no transaction.
--
-- KEYS     keys of which one changes with every write
-- ARGV     commands that read, each its name, the count of its arguments, and those
-- Returns  the values of KEYS, then the answer to each command

local answers = {redis.call('MGET', unpack(KEYS))}
local at, count = 1, #ARGV
while at <= count do
  local last = at + 1 + tonumber(ARGV[at + 1])
  answers[#answers + 1] = redis.call(ARGV[at], unpack(ARGV, at + 2, last))
  at = last + 1
end
return answers
