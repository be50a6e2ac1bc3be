-- The start of a batch: its time, its number, and the values of its keys.

-- A key expires this long after its state equals a new one.
local MARGIN_MS = 1000
-- A test's clock stands still while the server's goes on: no key may expire meanwhile.
local STANDSTILL_MS = 3600000

local KEYS, ARGV = KEYS, ARGV

-- The time, by how many milliseconds a key outlives its state, and the number of the batch.
local now, spare_ms, number
do
  local header, at = ARGV[1], nil
  if #header > 0 then now, at = unpack_from('<I8', header) end
  if #header > 8 then number = unpack_from('<I8', header, at) end
  if now and now <= MAX then
    spare_ms = STANDSTILL_MS
  else
    local time = call('TIME')
    now, spare_ms = time[1] * 1000000 + time[2], MARGIN_MS
  end
end

-- What is written in the end, by key: the value, or false to delete it; and when its state equals a new
-- one, or nil for never.
local staged, expires = {}, {}

-- The keys that the general path has loaded, which go before `staged`; and the keys that must not or
-- cannot be written, with the error.
local entries, failed = {}, {}

-- By key index: the states that fast_path.lua has loaded; the values that it left for the general path;
-- and the values that the reply shows.
local states, sealed, shown = {}, {}, {}

-- The first byte of an idempotency key's value, before the number and the reply.
local IDEMPOTENCY_HEAD = 84

-- A batch that was answered before gets the same reply, and changes nothing. At first only the number is
-- read: Lua is slow to take in long strings.
local idempotency_key = number and KEYS[#KEYS]
if idempotency_key then
  local last = call('GETRANGE', idempotency_key, '0', '8')
  if #last == 9 and byte(last) == IDEMPOTENCY_HEAD then
    local answered = unpack_from('<I8', last, 2)
    if answered > number then
      return redis.error_reply('STALE a later batch of this idempotency key was answered')
    elseif answered == number then
      return sub(call('GET', idempotency_key), 10)
    end
  end
end

-- The stored values, in the order of KEYS: a string, or false for none. One MGET is cheaper than a GET
-- for each.
local stored, own = {}, idempotency_key and #KEYS - 1 or #KEYS
if own > 0 then
  -- An error ends the call: if the keys counted as missing, all limits would start afresh.
  stored = redis.call('MGET', unpack(KEYS, 1, own))
  local missing = {}
  for key_index = 1, own do
    if not stored[key_index] then missing[#missing + 1] = KEYS[key_index] end
  end
  -- MGET does not show keys of another type, which belong to somebody else.
  if #missing > 0 and redis.call('EXISTS', unpack(missing)) > 0 then
    for _, key in ipairs(missing) do
      local found = call('GET', key)
      if found then entries[key] = { broken = found.err } end
    end
  end
end
