-- What keys hold, for operators: a script of its own, which changes nothing.
--
-- KEYS   any keys
-- Reply  one string per key: empty where there is none; byte 0, the TTL in milliseconds and what is
--        wrong with it; or the kind, the TTL, how many accounts there are, and for each of them what it
--        leaves, when nothing is owed any more, and its spec as five numbers

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local function numbers(kind, spec)
  if kind == BUCKET then
    return spec.count * spec.common, spec.period * spec.common, spec.burst, 0, 0
  elseif spec.unit then
    return spec.limit, spec.unit, spec.start, spec.finish, spec.next_finish
  end
  return spec.limit, spec.window or 0, 0, 0, 0
end

local function look(key, ttl)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'string' then error(value and value.err or 'it is gone', 0) end
  local kind = (byte(value) or 0) % 8
  if kind == 0 then error('a value of another format', 0) end
  local slot = slot_of(key, kind, {})
  local told = { pack('<Bi8B', kind, ttl, #slot.accounts) }
  for place, account in ipairs(slot.accounts) do
    local available, reset = slot.algorithm.reading(account.state, account.spec, now)
    told[place + 1] = pack('<I8i8I8I8I8I8I8', available, reset, numbers(kind, account.spec))
  end
  return table.concat(told)
end

local replies = {}
for index, key in ipairs(KEYS) do
  local ttl = redis.call('PTTL', key)
  if ttl == -2 then
    replies[index] = ''
  else
    local done, told = pcall(look, key, ttl)
    replies[index] = done and told or pack('<Bi8', 0, ttl) .. tostring(told)
  end
end
return replies
