-- Pushes changes of marks.
--
-- KEYS     the epoch and the number of the last change; the values; the number of the last change of each
--          mark; the end of each mark
-- ARGV     the channel; an epoch to begin with; the most marks; then for each change: the mark, the
--          operation (s: set, l: set if longer, n: set if absent, r: remove), for how many milliseconds
--          it lasts ('' for ever), the value
-- Reply    how many changes were refused because there are too many marks
local head, values, changes, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
-- How long the removal of an unknown mark is kept: a node may still have the mark.
local unknown_ms = 3600000

-- Without the head no node could tell what is new.
if not redis.call('HGET', head, 'epoch') then
  redis.call('DEL', values, changes, ends)
  redis.call('HSET', head, 'epoch', ARGV[2])
end

-- Marks that have ended make room.
local over = redis.call('ZRANGE', ends, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 256)
if #over > 0 then
  redis.call('HDEL', values, unpack(over))
  redis.call('ZREM', changes, unpack(over))
  redis.call('ZREM', ends, unpack(over))
end

local function end_of(id)
  local till = redis.call('ZSCORE', ends, id)
  if till == 'inf' then return math.huge end
  till = tonumber(till or 0)
  return till > now and till
end

local number
local function changed(id)
  number = redis.call('HINCRBY', head, 'number', 1)
  redis.call('ZADD', changes, number, id)
end

local refused = 0
for at = 4, #ARGV, 4 do
  local id, operation, lasts, value = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  local there, till = end_of(id), lasts and now + lasts or math.huge
  if operation == 'r' then
    -- A removal is kept for as long as the mark would have lasted.
    till = math.min(till, there or now + unknown_ms)
  end
  if operation == 'n' and there then
    -- The server has it.
  elseif operation == 'l' and there and there >= till
    and string.sub(redis.call('HGET', values, id) or '', 1, 1) == 's' then
    -- The mark lasts longer already: the node is told so.
    changed(id)
  elseif not there and redis.call('HLEN', values) >= tonumber(ARGV[3]) then
    refused = refused + 1
  else
    redis.call('HSET', values, id, (operation == 'r' and 'r' or 's') .. value)
    redis.call('ZADD', ends, till < math.huge and string.format('%.0f', till) or '+inf', id)
    changed(id)
  end
end

for at = 1, 4 do
  redis.call('PEXPIRE', KEYS[at], '34560000000')
end
if number then
  -- If publishing is forbidden, nodes pull within a second all the same.
  redis.pcall('PUBLISH', ARGV[1], number)
end
return refused
