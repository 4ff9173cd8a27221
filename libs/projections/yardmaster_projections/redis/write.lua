-- The conditional write of the views: all changes in one step, or none.
--
-- KEYS     1  the pointer to the generation that counts
--          2  the head of the generation that is written
-- ARGV     1  the pointer as the writer read it ("" where there is none; "*" skips the check)
--          2  the head as the writer read it ("" where there is none)
--          3  the head after the write
--          4  and on: operations, each its name, the count of its arguments, and those
-- Returns  1; or 0 where pointer or head differ: then nothing was written
--
-- Every write changes the head, so an equal head proves that nobody wrote in between.
-- Redis refuses memory only to the first write of a script, so a full Redis writes nothing.
-- The head is written last: if a command fails, the writer repeats the whole write.

local BATCH = 2000

if ARGV[1] ~= '*' and (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
if (redis.call('GET', KEYS[2]) or '') ~= ARGV[2] then
  return 0
end

local function run(command, arguments_by_key)
  for key, arguments in pairs(arguments_by_key) do
    for at = 1, #arguments, BATCH do
      redis.call(command, key, unpack(arguments, at, math.min(at + BATCH - 1, #arguments)))
    end
  end
end

local function append(arguments_by_key, key, ...)
  local arguments = arguments_by_key[key]
  if arguments == nil then
    arguments = {}
    arguments_by_key[key] = arguments
  end
  for _, argument in ipairs({...}) do
    arguments[#arguments + 1] = argument
  end
end

-- The operation INDEX: moves rows between the sorted sets of their kind.
-- Arguments: the hash of index entries; the set of all rows; the set of rows by key ("" where there
-- is none); the prefix of the sets of facets; then the key and the entry of each row ("" for a row
-- that is deleted). An entry is the row's facets, a line each, a NUL, and its member of the sets.
local function index(first, last)
  local entries, all, by_key, prefix = unpack(ARGV, first, first + 3)

  local function places(key, entry)
    local found = {}
    if entry ~= '' then
      local separator = string.find(entry, '\0', 1, true)
      local member = string.sub(entry, separator + 1)
      found[all] = member
      if by_key ~= '' then
        found[by_key] = key .. '\0' .. member
      end
      for facet in string.gmatch(string.sub(entry, 1, separator - 1), '[^\n]+') do
        found[prefix .. facet] = member
      end
    end
    return found
  end

  local keys, enter, leave, put, drop = {}, {}, {}, {}, {}
  for at = first + 4, last, 2 do
    keys[#keys + 1] = ARGV[at]
  end
  local before = redis.call('HMGET', entries, unpack(keys))
  for number, key in ipairs(keys) do
    local old, new = before[number] or '', ARGV[first + 3 + 2 * number]
    if old ~= new then
      if new == '' then
        append(drop, entries, key)
      else
        append(put, entries, key, new)
      end
      local from, to = places(key, old), places(key, new)
      for set, member in pairs(to) do
        if from[set] ~= member then
          append(enter, set, '0', member)
        end
      end
      for set, member in pairs(from) do
        if to[set] ~= member then
          append(leave, set, member)
        end
      end
    end
  end
  run('HSET', put)
  run('HDEL', drop)
  run('ZADD', enter)
  run('ZREM', leave)
end

local at, count = 4, #ARGV
while at <= count do
  local operation, first, last = ARGV[at], at + 2, at + 1 + tonumber(ARGV[at + 1])
  if operation == 'INDEX' then
    index(first, last)
  else
    redis.call(operation, unpack(ARGV, first, last))
  end
  at = last + 1
end
redis.call('SET', KEYS[2], ARGV[3])
return 1
