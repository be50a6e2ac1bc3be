-- What all asks of a batch share: the time, what is stored, and what is to be stored.

-- A key goes this long after its state means nothing.
local MARGIN_MS = 1000
-- A test's clock stands still while the server's goes on: no key may go by that.
local STANDSTILL_MS = 3600000

local KEYS, ARGV = KEYS, ARGV

-- The time, how many milliseconds a key lasts longer than its state means something, and the number
-- of the batch.
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

-- What is to be stored in the end, by key: the value, or false to delete it, and until when it means
-- something; nil for ever.
local staged, expires = {}, {}

-- Keys that the machinery has at work, which go before `staged`; and those that must not be
-- written, or cannot be, with why.
local slots, failed = {}, {}

-- What quick.lua has at work, by the places of keys; what it left, where others go on; and what the
-- reply shows of each.
local held, sealed, shown = {}, {}, {}

-- What a lane begins with, before the number and the reply.
local LANE_HEAD = 84

-- The batch's own lane. One that was answered before is answered the same way, and changes nothing.
-- Only the number is read of what the lane holds: Lua is slow to take in long strings.
local lane = number and KEYS[#KEYS]
if lane then
  local last = call('GETRANGE', lane, '0', '8')
  if #last == 9 and byte(last) == LANE_HEAD then
    local answered = unpack_from('<I8', last, 2)
    if answered > number then
      return redis.error_reply('STALE a later batch of this lane was answered')
    elseif answered == number then
      return sub(call('GET', lane), 10)
    end
  end
end

-- What the server has, in the order of KEYS: a string, or false for none. All at once is cheaper
-- than one by one.
local stored, own = {}, lane and #KEYS - 1 or #KEYS
if own > 0 then
  -- What cannot be read ends the call: taken for missing, everybody would start afresh.
  stored = redis.call('MGET', unpack(KEYS, 1, own))
  local missing = {}
  for place = 1, own do
    if not stored[place] then missing[#missing + 1] = KEYS[place] end
  end
  -- What MGET does not show may be of another type, and is somebody else's then.
  if #missing > 0 and redis.call('EXISTS', unpack(missing)) > 0 then
    for _, key in ipairs(missing) do
      local found = call('GET', key)
      if found then slots[key] = { broken = found.err } end
    end
  end
end
