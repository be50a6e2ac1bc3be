-- Sets and removes marks.
-- KEYS: their epoch and the number of the last change; their values; by mark, the number of its last
-- change; by mark, its end. ARGV: the channel, an epoch to begin with, the most marks, and of each
-- change: the mark, how, for how many milliseconds ('' for ever), the value.
local head, values, changes, ends = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
-- How long it is remembered that something was removed which was not there: a node may still have it.
local unknown = 3600000

-- Without its head nobody could tell what is new in the rest.
if not redis.call('HGET', head, 'epoch') then
  redis.call('DEL', values, changes, ends)
  redis.call('HSET', head, 'epoch', ARGV[2])
end

-- What has ended makes room.
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
  local id, how, lasts, value = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3]
  local there, till = end_of(id), lasts and now + lasts or math.huge
  if how == 'r' then
    -- Remembered for as long as what is removed would have held.
    till = math.min(till, there or now + unknown)
  end
  if how == 'n' and there then
    -- It is known already.
  elseif how == 'l' and there and there >= till
    and string.sub(redis.call('HGET', values, id) or '', 1, 1) == 's' then
    -- What is there lasts longer: whoever says less is told.
    changed(id)
  elseif not there and redis.call('HLEN', values) >= tonumber(ARGV[3]) then
    refused = refused + 1
  else
    redis.call('HSET', values, id, (how == 'r' and 'r' or 's') .. value)
    redis.call('ZADD', ends, till < math.huge and string.format('%.0f', till) or '+inf', id)
    changed(id)
  end
end

for at = 1, 4 do
  redis.call('PEXPIRE', KEYS[at], '34560000000')
end
if number then
  -- Who may not tell is heard within a second all the same.
  redis.pcall('PUBLISH', ARGV[1], number)
end
return refused
