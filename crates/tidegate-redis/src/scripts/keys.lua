-- Keys and their values.
--
-- What has no short form (forms.lua) is a byte for the algorithm and the number of accounts, the time
-- of the last charge in 7 bytes, and MessagePack: how long before that the key was born, then the
-- accounts. Of a bucket that nodes have borrowed from, the counters come last.
--
-- Nothing that is infinite, too large, or no number at all, may come in from a value that somebody
-- else wrote: there would be no end to it.

local SHORT = 64
-- Added to the first byte for a bucket that nodes have borrowed from.
local LENT = 128

-- The short form of a bucket, or nil.
local function save_bucket(slot, spec, s)
  local charged, common, period, owed = slot.charged, spec.common, spec.period, s.owed
  local age, owing, low, rest = charged - slot.born, charged - s.since, s.low, s.remainder / common
  local units, room, due = common / 1000000, spec.burst / 1000000, owed * period - rest
  if s.at ~= charged or age >= AGE_MAX or units % 1 > 0 or rest % 1 > 0 or rest >= period or due < 0
    or owed * period >= WIDE_DUE or (low and low >= NO_WIDE_LOW) then
    return nil
  end
  local count = spec.count
  if room == count * units and units < 1024 and count < 16384 and period < 65536
    and (owing == age or owing == 0) and due < TIGHT_DUE and (not low or low < NO_LOW) then
    local pace = count + period * 16384 + units * 1073741824
    return pack(TIGHT_FORM, (owing == age and TIGHT or TIGHT_NEW) + pace * 256, charged, age, due,
      low or NO_LOW)
  end
  if count < 16777216 and period < 16777216 and units < 65536 and room < 16777216
    and room % 1 == 0 then
    return pack(WIDE_FORM, WIDE + (units + room * 65536) * 256, charged, age, owing,
      count + period * 16777216, due, low or NO_WIDE_LOW)
  end
end

local function save_window(slot, spec, s)
  local charged, units, ms = slot.charged, spec.limit / 1000000, spec.window / 1000
  if s.at == charged and units < 4294967296 and ms < 4294967296 and units % 1 == 0 and ms % 1 == 0
    and charged - slot.born < AGE_MAX and s.used <= NO_WIDE_LOW then
    return pack(WINDOW_FORM, WINDOW, charged, charged - slot.born, units, ms, s.used)
  end
end

local short_forms = { [BUCKET] = save_bucket, [FIXED] = save_window }

local function save(slot)
  local accounts, kind, lent = slot.accounts, slot.kind, is_lent(slot)
  local short = #accounts == 1 and not lent and short_forms[kind]
  short = short and short(slot, accounts[1].spec, accounts[1].state)
  if short then return short end
  local out, n = { slot.charged - slot.born }, 1
  for _, account in ipairs(accounts) do
    n = slot.algorithm.save(out, n, account.spec, account.state, slot)
  end
  if lent then n, kind = save_lent(slot, out, n), kind + LENT end
  return pack('<BI7', kind + 8 * (#accounts - 1), slot.charged) .. msgpack(unpack(out, 1, n))
end

-- `asked` is what the ask says of the key: nearly always what is stored, and then not made again.
local function load_bucket(slot, value, asked)
  local head, charged, age, owing, pace, due, low
  local form, count, period, units, room = byte(value), nil, nil, nil, nil
  if form > ROUNDED + SHORT then form = form - ROUNDED end
  if #value == 28 and (form == TIGHT or form == TIGHT_NEW) then
    head, charged, age, due, low = unpack_from(TIGHT_FORM, value)
    pace = floor(head / 256)
    count, period, units = pace % 16384, floor(pace / 16384) % 65536, floor(pace / 1073741824)
    owing, room, low = form == TIGHT and age or 0, count * units, low ~= NO_LOW and low
  elseif #value == 42 and form == WIDE then
    head, charged, age, owing, pace, due, low = unpack_from(WIDE_FORM, value)
    units, room = floor(head / 256) % 65536, floor(head / 16777216)
    count, period, low = pace % 16777216, floor(pace / 16777216), low ~= NO_WIDE_LOW and low
  else
    unreadable()
  end
  if period == 0 or units == 0 or owing > age or due > MAX then unreadable() end
  local rest = -due % period
  local common, burst, spec = units * 1000000, room * 1000000, asked
  if not spec or spec.count ~= count or spec.period ~= period or spec.common ~= common
    or spec.burst ~= burst then
    spec = { count = count, period = period, common = common, burst = burst }
  end
  slot.born, slot.charged = charged - age, charged
  slot.accounts = { {
    spec = spec,
    state = {
      owed = (due + rest) / period, remainder = rest * common, at = charged,
      since = charged - owing, low = low,
    },
  } }
end

local function load_window(slot, value)
  local form, charged, age, units, ms, used = unpack_from(WINDOW_FORM, value)
  if #value ~= 27 or (form ~= WINDOW and form ~= WINDOW + ROUNDED) or ms == 0 then
    unreadable()
  end
  slot.born, slot.charged = charged - age, charged
  slot.accounts = { {
    spec = { limit = units * 1000000, window = ms * 1000 }, state = { at = charged, used = used },
  } }
end

-- All that MessagePack found, if nothing is left over, and nothing in it is nil or too large.
local function sound(...)
  local values = { ... }
  for place = 1, select('#', ...) do
    local found = values[place]
    if found == nil or (type(found) == 'number' and not (found >= -MAX and found <= MAX)) then
      unreadable()
    end
  end
  return values[1] == -1 and values or unreadable()
end

local function load_long(slot, value, head, lent)
  local _, charged = unpack_from('<BI7', value)
  local values, n = sound(msgunpack(value, 100, 8)), 2
  local age = values[2]
  if charged > MAX or type(age) ~= 'number' or age < 0 then unreadable() end
  slot.charged, slot.born, slot.accounts = charged, charged - age, {}
  for place = 1, floor(head / 8) + 1 do
    local spec, state
    spec, state, n = slot.algorithm.load(values, n, slot)
    slot.accounts[place] = { spec = spec, state = state }
  end
  if lent then n = load_lent(slot, values, n) end
  if n ~= #values then unreadable() end
end

-- Reads a value of the slot's algorithm.
local function load(slot, value, asked)
  local head = byte(value) or unreadable()
  if head < SHORT then
    load_long(slot, value, head)
  elseif head >= LENT and slot.kind == BUCKET then
    load_long(slot, value, head - LENT, true)
  elseif slot.kind == BUCKET then
    load_bucket(slot, value, asked)
  elseif slot.kind == FIXED then
    load_window(slot, value)
  else
    unreadable()
  end
end

-- A limit may have got another algorithm, and nodes with the policy before may still count by the
-- old one. What they wrote stays for so long after the last time; then its key is as good as new.
-- Otherwise both would begin afresh with every request.
local OTHERS_US = 60000000

-- When a value was last charged by another algorithm; nil if it was not.
local function charged_by_another(kind, value)
  local head = byte(value)
  local other = head and head % 8 or 0
  if other == 0 or other == kind then return nil end
  local found = { kind = other, algorithm = algorithm(other) }
  load(found, value)
  return found.charged
end

local function is_anothers(slot)
  return slot.other and now - slot.other < OTHERS_US
end

local function usable(slot)
  if is_anothers(slot) then error('another algorithm counted there within the last minute', 0) end
  return slot
end

local function forget(slot)
  slot.accounts, slot.lent, slot.algorithm = nil, nil, algorithm(slot.kind)
end

-- A state that means nothing is let go, as its key would be. None does that was just charged.
local function settle_slot(slot)
  slot.changed, slot.ends = true, nil
  if ledger_ends(slot) == 0 then forget(slot) end
end

-- Leaves a slot to be stored.
local function stage(slot)
  local key, ends = slot.key, slot.ends or (slot.accounts and ledger_ends(slot))
  if not slot.accounts or ends == 0 then
    staged[key] = nil
    if slot.stored then staged[key] = false end
  else
    -- A total never means nothing by itself: it stays until it is given back or reset.
    staged[key], expires[key] = save(slot), ends
  end
end

-- The levels or amendments of the ask at work, and whether it has begun to change their keys.
local used, changing

-- The slot of the key at a place, so that asks see what those before them did.
local function slot_of(place, kind, asked)
  local key = KEYS[place]
  local slot = slots[key]
  if slot and slot.broken then error(slot.broken, 0) end
  if slot and slot.kind ~= kind then
    if slot.user == used then error('two algorithms on one key', 0) end
    -- The limit has got another algorithm since the ask before.
    if slot.changed then stage(slot) end
    slot = nil
  end
  if slot then
    slot.user = used
    return slot
  end
  -- All fields at once: a table that grows is made again and again.
  slot = {
    key = key, kind = kind, algorithm = algorithm(kind), accounts = nil, born = nil, charged = nil,
    other = nil, stored = nil, changed = nil, broken = nil, ends = nil, lent = nil, user = used,
  }
  slots[key] = slot
  local value = staged[key]
  if value == nil then value = stored[place] end
  if value then
    -- Until it has been read: whatever goes wrong, the ask that wanted it ends here.
    slot.broken = 'cannot read its value'
    slot.other = charged_by_another(kind, value)
    if not slot.other then load(slot, value, asked) end
    slot.broken, slot.stored = nil, true
  end
  return slot
end
