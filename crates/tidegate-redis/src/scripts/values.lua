-- Reads and writes the values of keys.
--
-- A value without a short form (short_forms.lua) is a byte for the algorithm and the number of accounts,
-- the time of the last charge in 7 bytes, and MessagePack: how long before that the key was born, then the
-- accounts. Of a bucket that nodes have borrowed from, the counters come last.
--
-- A value that somebody else wrote must not bring in infinite or too large numbers, or none at all: loops
-- over them might never end.

local SHORT = 64
-- Added to the first byte for a bucket that nodes have borrowed from.
local LENT = 128

-- The short form of a bucket, or nil.
local function save_bucket(entry, spec, s)
  local charged, common, period, owed = entry.charged, spec.common, spec.period, s.owed
  local age, owing, low, rest = charged - entry.born, charged - s.since, s.low, s.remainder / common
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

local function save_window(entry, spec, s)
  local charged, units, ms = entry.charged, spec.limit / 1000000, spec.window / 1000
  if s.at == charged and units < 4294967296 and ms < 4294967296 and units % 1 == 0 and ms % 1 == 0
    and charged - entry.born < AGE_MAX and s.used <= NO_WIDE_LOW then
    return pack(WINDOW_FORM, WINDOW, charged, charged - entry.born, units, ms, s.used)
  end
end

local short_forms = { [BUCKET] = save_bucket, [FIXED] = save_window }

local function save(entry)
  local accounts, kind, lent = entry.accounts, entry.kind, is_lent(entry)
  local short = #accounts == 1 and not lent and short_forms[kind]
  short = short and short(entry, accounts[1].spec, accounts[1].state)
  if short then return short end
  local out, n = { entry.charged - entry.born }, 1
  for _, account in ipairs(accounts) do
    n = entry.algorithm.save(out, n, account.spec, account.state, entry)
  end
  if lent then n, kind = save_lent(entry, out, n), kind + LENT end
  return pack('<BI7', kind + 8 * (#accounts - 1), entry.charged) .. msgpack(unpack(out, 1, n))
end

-- `wanted` is the spec of the command. It nearly always equals the stored one, and is used instead.
local function load_bucket(entry, value, wanted)
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
  local common, burst, spec = units * 1000000, room * 1000000, wanted
  if not spec or spec.count ~= count or spec.period ~= period or spec.common ~= common
    or spec.burst ~= burst then
    spec = { count = count, period = period, common = common, burst = burst }
  end
  entry.born, entry.charged = charged - age, charged
  entry.accounts = { {
    spec = spec,
    state = {
      owed = (due + rest) / period, remainder = rest * common, at = charged,
      since = charged - owing, low = low,
    },
  } }
end

local function load_window(entry, value)
  local form, charged, age, units, ms, used = unpack_from(WINDOW_FORM, value)
  if #value ~= 27 or (form ~= WINDOW and form ~= WINDOW + ROUNDED) or ms == 0 then
    unreadable()
  end
  entry.born, entry.charged = charged - age, charged
  entry.accounts = { {
    spec = { limit = units * 1000000, window = ms * 1000 }, state = { at = charged, used = used },
  } }
end

-- The values that MessagePack found, if nothing is left over, nil or too large.
local function sound(...)
  local values = { ... }
  for position = 1, select('#', ...) do
    local found = values[position]
    if found == nil or (type(found) == 'number' and not (found >= -MAX and found <= MAX)) then
      unreadable()
    end
  end
  return values[1] == -1 and values or unreadable()
end

local function load_long(entry, value, head, lent)
  local _, charged = unpack_from('<BI7', value)
  local values, n = sound(msgunpack(value, 100, 8)), 2
  local age = values[2]
  if charged > MAX or type(age) ~= 'number' or age < 0 then unreadable() end
  entry.charged, entry.born, entry.accounts = charged, charged - age, {}
  for position = 1, floor(head / 8) + 1 do
    local spec, state
    spec, state, n = entry.algorithm.load(values, n, entry)
    entry.accounts[position] = { spec = spec, state = state }
  end
  if lent then n = load_lent(entry, values, n) end
  if n ~= #values then unreadable() end
end

-- Reads a value into an entry.
local function load(entry, value, wanted)
  local head = byte(value) or unreadable()
  if head < SHORT then
    load_long(entry, value, head)
  elseif head >= LENT and entry.kind == BUCKET then
    load_long(entry, value, head - LENT, true)
  elseif entry.kind == BUCKET then
    load_bucket(entry, value, wanted)
  elseif entry.kind == FIXED then
    load_window(entry, value)
  else
    unreadable()
  end
end

-- After a reload a limit may have another algorithm, while nodes with the old policy still count by the
-- old one. A value of the old algorithm stays for this long after its last charge; then its key counts
-- as new. Otherwise both would start afresh with every request.
local OTHERS_US = 60000000

-- The time of the last charge by another algorithm; nil if there was none.
local function charged_by_another(kind, value)
  local head = byte(value)
  local other = head and head % 8 or 0
  if other == 0 or other == kind then return nil end
  local found = { kind = other, algorithm = algorithm(other) }
  load(found, value)
  return found.charged
end

local function is_anothers(entry)
  return entry.other and now - entry.other < OTHERS_US
end

local function usable(entry)
  if is_anothers(entry) then error('another algorithm counted there within the last minute', 0) end
  return entry
end

local function forget(entry)
  entry.accounts, entry.lent, entry.algorithm = nil, nil, algorithm(entry.kind)
end

-- Forgets a state that equals a new one, as its expiry would.
local function settle_entry(entry)
  entry.changed, entry.ends = true, nil
  if ledger_ends(entry) == 0 then forget(entry) end
end

-- Stages an entry to be written.
local function stage(entry)
  local key, ends = entry.key, entry.ends or (entry.accounts and ledger_ends(entry))
  if not entry.accounts or ends == 0 then
    staged[key] = nil
    if entry.stored then staged[key] = false end
  else
    -- A total never expires: it stays until it is given back or reset.
    staged[key], expires[key] = save(entry), ends
  end
end

-- The levels or amendments of the current command, and whether it has begun to change their keys.
local used, changing

-- The entry of a key, which commands share: each sees what those before it did.
local function entry_of(key_index, kind, wanted)
  local key = KEYS[key_index]
  local entry = entries[key]
  if entry and entry.broken then error(entry.broken, 0) end
  if entry and entry.kind ~= kind then
    if entry.user == used then error('two algorithms on one key', 0) end
    -- The limit has another algorithm than in the command before.
    if entry.changed then stage(entry) end
    entry = nil
  end
  if entry then
    entry.user = used
    return entry
  end
  -- All fields at once: Lua reallocates a table that grows.
  entry = {
    key = key, kind = kind, algorithm = algorithm(kind), accounts = nil, born = nil, charged = nil,
    other = nil, stored = nil, changed = nil, broken = nil, ends = nil, lent = nil, user = used,
  }
  entries[key] = entry
  local value = staged[key]
  if value == nil then value = stored[key_index] end
  if value then
    -- Broken until it is read: if that fails, later commands must not use the entry.
    entry.broken = 'cannot read its value'
    entry.other = charged_by_another(kind, value)
    if not entry.other then load(entry, value, wanted) end
    entry.broken, entry.stored = nil, true
  end
  return entry
end
