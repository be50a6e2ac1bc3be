-- The values of keys that have one account with common numbers: nearly all of them. Fields have a
-- fixed place, so that nothing in them can be no number, or none that is finite.
--
-- A value begins with a byte, which is the algorithm, and 64 for these forms, and with the time of
-- the last charge in 7 bytes. In 5 bytes each follow how long before it the key was born and, in
-- the wide form of a bucket, since when something is owed.

local TIGHT, TIGHT_NEW, WIDE, WINDOW = 65, 73, 81, 68
-- Count, period, common in units, remainder in commons, owed, low; something is owed since the key
-- was born or, where it is new, since the last charge. 28 bytes fit into an allocation of 48.
local TIGHT_FORM = '<BI7I5I2I2BI2I4I4'
-- The same, with the burst in units behind the common. 44 bytes fit into an allocation of 64.
local WIDE_FORM = '<BI7I5I5I3I3I2I3I3I6I6'
-- Limit in units, window in milliseconds, used.
local WINDOW_FORM = '<BI7I5I4I4I6'

local NO_LOW, NO_WIDE_LOW, AGE_MAX = 4294967295, 281474976710655, 1099511627776

-- When it was charged, how long before that it was born and something is owed since, the spec in its
-- four numbers, the remainder in commons, what is owed and the low-water mark or false; nothing if
-- it is no such value.
local function read_bucket(value)
  local form = byte(value)
  if #value == 28 and (form == TIGHT or form == TIGHT_NEW) then
    local _, charged, age, count, period, common, remainder, owed, low =
      unpack_from(TIGHT_FORM, value)
    common = common * 1000000
    return charged, age, form == TIGHT and age or 0, count, period, common, count * common,
      remainder, owed, low ~= NO_LOW and low
  end
  if #value == 44 and form == WIDE then
    local _, charged, age, owing, count, period, common, burst, remainder, owed, low =
      unpack_from(WIDE_FORM, value)
    return charged, age, owing, count, period, common * 1000000, burst * 1000000,
      remainder, owed, low ~= NO_WIDE_LOW and low
  end
end

-- The tightest form that holds all of it, or nil.
local function write_bucket(
  charged, age, owing, count, period, common, burst, remainder, owed, low)
  local units = common / 1000000
  if burst == count * common and count < 65536 and period < 65536 and units < 256
    and (owing == age or owing == 0) and age < AGE_MAX and units % 1 == 0
    and owed <= NO_LOW and (not low or low < NO_LOW) then
    return pack(TIGHT_FORM, owing == age and TIGHT or TIGHT_NEW, charged, age, count, period,
      units, remainder, owed, low or NO_LOW)
  end
  local room = burst / 1000000
  if count < 16777216 and period < 16777216 and units < 65536 and room < 16777216
    and units % 1 == 0 and room % 1 == 0 and age < AGE_MAX and owing < AGE_MAX
    and owed <= NO_WIDE_LOW and (not low or low < NO_WIDE_LOW) then
    return pack(WIDE_FORM, WIDE, charged, age, owing, count, period, units, room, remainder,
      owed, low or NO_WIDE_LOW)
  end
end

-- When it was charged, how long before that it was born, limit, window and what is used; nothing if
-- it is no such value.
local function read_window(value)
  if #value == 27 and byte(value) == WINDOW then
    local _, charged, age, limit, window, used = unpack_from(WINDOW_FORM, value)
    return charged, age, limit * 1000000, window * 1000, used
  end
end

local function write_window(charged, age, limit, window, used)
  local units, ms = limit / 1000000, window / 1000
  if units < 4294967296 and ms < 4294967296 and units % 1 == 0 and ms % 1 == 0
    and age < AGE_MAX and used <= NO_WIDE_LOW then
    return pack(WINDOW_FORM, WINDOW, charged, age, units, ms, used)
  end
end
