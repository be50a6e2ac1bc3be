-- What all asks of a batch share: the time, what is stored, and what is to be stored.

-- A key goes this long after its state means nothing.
local MARGIN_MS = 1000
-- A test's clock stands still while the server's goes on: no key may go by that.
local STANDSTILL_MS = 3600000

local KEYS, ARGV = KEYS, ARGV

-- The time, how many milliseconds after its end by that a key goes by the server's own clock, and
-- the number of the batch.
local now, late_ms, number
do
  local time, header = redis.call('TIME'), ARGV[1]
  now, late_ms = time[1] * 1000000 + time[2], MARGIN_MS
  if #header > 0 then
    local fixed, at = unpack_from('<I8', header)
    if #header > 8 then number = unpack_from('<I8', header, at) end
    if fixed <= MAX then
      now, late_ms = fixed, floor((now - fixed) / 1000) + STANDSTILL_MS
    end
  end
end

-- What is to be stored in the end, by key: the value, or false to delete it, and until when it means
-- something; nil for ever.
local staged, expires = {}, {}

-- Keys that the machinery has at work, which goes before `staged`; and those that must not be
-- written, or cannot be, with why.
local slots, failed = {}, {}

-- What the server has, in the order of KEYS: a string, or false for none.
local stored = {}
if #KEYS > 0 then
  stored = redis.call('MGET', unpack(KEYS))
  local missing = {}
  for place = 1, #KEYS do
    if not stored[place] then missing[#missing + 1] = KEYS[place] end
  end
  -- What MGET does not show may be of another type, and is somebody else's then.
  if #missing > 0 and redis.call('EXISTS', unpack(missing)) > 0 then
    for _, key in ipairs(missing) do
      local found = redis.pcall('GET', key)
      if found then slots[key] = { broken = found.err } end
    end
  end
end

-- The batch's own lane. One that was answered before is answered the same way, and changes nothing.
local lane = number and KEYS[#KEYS]
if lane then
  local last = stored[#KEYS]
  if last and #last > 8 then
    local answered, at = unpack_from('<I8', last)
    if answered == number then return cmsgpack.unpack(sub(last, at)) end
    if answered > number then
      return redis.error_reply('STALE a later batch of this lane was answered')
    end
  end
end
