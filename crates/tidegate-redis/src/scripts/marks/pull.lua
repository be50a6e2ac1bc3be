-- Pulls the changes of marks since a number, and exchanges loads.
--
-- KEYS     as in push.lua, and the loads by node
-- ARGV     the epoch and the number that the node has; how many changes it takes (fewer where they are
--          long); an epoch to begin with; 1 to extend the expiry of the keys; the node's name; its load,
--          or nothing; for how many milliseconds a load counts
-- Reply    the epoch; the number of the last change; the largest load; for each change the mark, for how
--          many milliseconds it lasts ('' for ever) and the value; 1 if there are more
local head, values, changes, ends, loads = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local t = redis.call('TIME')
local now, keep = t[1] * 1000 + math.floor(t[2] / 1000), '34560000000'

local over = redis.call('ZRANGE', ends, '-inf', string.format('%.0f', now), 'BYSCORE', 'LIMIT', 0, 256)
if #over > 0 then
  redis.call('HDEL', values, unpack(over))
  redis.call('ZREM', changes, unpack(over))
  redis.call('ZREM', ends, unpack(over))
end

-- A server that evicts keys may have lost a part. Then all is dropped, and nodes push it again.
local epoch, count = redis.call('HGET', head, 'epoch'), redis.call('HLEN', values)
local whole = redis.call('ZCARD', changes) == count and redis.call('ZCARD', ends) == count
if not epoch or not whole then
  redis.call('DEL', head, values, changes, ends)
  epoch = ARGV[4]
  redis.call('HSET', head, 'epoch', epoch)
  redis.call('PEXPIRE', head, keep)
end
-- A failover lost changes that this node has: their numbers will be used again.
if epoch == ARGV[1] and tonumber(redis.call('HGET', head, 'number') or 0) < tonumber(ARGV[2]) then
  epoch = ARGV[4]
  redis.call('HSET', head, 'epoch', epoch)
end
if ARGV[5] == '1' then
  for at = 1, 4 do
    redis.call('PEXPIRE', KEYS[at], keep)
  end
end

local from = epoch == ARGV[1] and ARGV[2] or '0'
local found = redis.call('ZRANGE', changes, '(' .. from, '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[3], 'WITHSCORES')
local page, last, bytes, more = {}, tonumber(from), 0, #found >= 2 * ARGV[3]
for at = 1, #found, 2 do
  -- A page that is too long to send in time would never arrive.
  if bytes > 262144 then
    more = true
    break
  end
  local id, value = found[at], redis.call('HGET', values, found[at])
  local till = redis.call('ZSCORE', ends, id)
  local lasts = till == 'inf' and '' or string.format('%.0f', math.max(0, till - now))
  page[#page + 1], page[#page + 2], page[#page + 3] = id, lasts, string.sub(value, 2)
  last, bytes = tonumber(found[at + 1]), bytes + #value
end

local largest = 0
if ARGV[7] ~= '' then
  redis.call('HSET', loads, ARGV[6], ARGV[7] .. ' ' .. string.format('%.0f', now))
  redis.call('PEXPIRE', loads, ARGV[8])
end
local reports = redis.call('HGETALL', loads)
for at = 1, #reports, 2 do
  local load, when = string.match(reports[at + 1], '^(%d+) (%d+)$')
  if load and math.abs(now - when) < tonumber(ARGV[8]) then
    largest = math.max(largest, tonumber(load))
  else
    redis.call('HDEL', loads, reports[at])
  end
end
return {epoch, last, largest, page, more and 1 or 0}
