-- What keys hold, for operators: a script of its own, which changes nothing.
--
-- KEYS     any keys
-- ARGV[1]  empty
-- Reply    one string per key: empty where there is none; byte 0, the TTL in milliseconds and what is
--          wrong with it; or the kind, the TTL, how many accounts there are, and for each of them what
--          it leaves, when nothing is owed any more, and its spec as six numbers

local function numbers(kind, spec)
  if kind == BUCKET then
    return spec.count * spec.common, spec.period * spec.common, spec.burst, 0, 0, 0
  elseif spec.unit then
    return spec.limit, spec.unit, spec.previous, spec.start, spec.finish, spec.next_finish
  end
  return spec.limit, spec.window or 0, 0, 0, 0, 0
end

local function look(place, ttl)
  local kind = (byte(stored[place] or '') or 0) % 8
  local slot = slot_of(place, kind > 0 and kind or BUCKET)
  if not slot.accounts then unreadable() end
  local told = { pack('<Bi8B', kind, ttl, #slot.accounts) }
  for index, account in ipairs(slot.accounts) do
    local available, reset = slot.algorithm.reading(account.state, account.spec, now)
    told[index + 1] = pack('<I8i8I8I8I8I8I8I8', available, reset, numbers(kind, account.spec))
  end
  return table.concat(told)
end

local replies = {}
for place = 1, #KEYS do
  local ttl = redis.call('PTTL', KEYS[place])
  if ttl == -2 then
    replies[place] = ''
  else
    local done, told = pcall(look, place, ttl)
    replies[place] = done and told or pack('<Bi8', 0, ttl) .. tostring(told)
  end
end
return replies
