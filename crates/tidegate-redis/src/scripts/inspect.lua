-- What keys hold, for operators. This script of its own changes nothing.
--
-- KEYS     any keys
-- ARGV[1]  empty
-- Reply    one string per key: empty where there is none; byte 0, the TTL in milliseconds and an
--          error; or the kind, the TTL, how many accounts there are, and for each of them what
--          is available, when nothing is owed any more, and its spec as six numbers

local function numbers(kind, spec)
  if kind == BUCKET then
    return spec.count * spec.common, spec.period * spec.common, spec.burst, 0, 0, 0
  elseif spec.unit then
    return spec.limit, spec.unit, spec.previous, spec.start, spec.finish, spec.next_finish
  end
  return spec.limit, spec.window or 0, 0, 0, 0, 0
end

local function inspect(key_index, ttl)
  local kind = (byte(stored[key_index] or '') or 0) % 8
  local entry = entry_of(key_index, kind > 0 and kind or BUCKET)
  if not entry.accounts then unreadable() end
  local packed = { pack('<Bi8B', kind, ttl, #entry.accounts) }
  for index, account in ipairs(entry.accounts) do
    local available, reset = entry.algorithm.reading(account.state, account.spec, now)
    packed[index + 1] = pack('<I8i8I8I8I8I8I8I8', available, reset, numbers(kind, account.spec))
  end
  return table.concat(packed)
end

local replies = {}
for key_index = 1, #KEYS do
  local ttl = redis.call('PTTL', KEYS[key_index])
  if ttl == -2 then
    replies[key_index] = ''
  else
    local done, packed = pcall(inspect, key_index, ttl)
    replies[key_index] = done and packed or pack('<Bi8', 0, ttl) .. tostring(packed)
  end
end
return replies
