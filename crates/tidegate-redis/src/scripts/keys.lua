-- Keys and their values.
--
-- A value is a byte for the algorithm and the number of accounts, the time of the last charge in 7
-- bytes, and MessagePack: how long before that the key was born, then the accounts. A bucket that
-- has owed something ever since it was born, and whose burst is its count, is by far the most
-- common: it leaves out the burst and the two times that follow from others.

-- Nothing that is infinite, or no number at all, may come in from a value that somebody else wrote:
-- there would be no end to it.

local SHORT = 64

-- Keys of this batch, so that asks see what those before them did, and each is written once.
local slots = {}

local function save(slot)
  local accounts, kind = slot.accounts, slot.kind
  local out, n = { slot.charged - slot.born }, 1
  local first = accounts[1]
  local spec, s = first.spec, first.state
  if kind == BUCKET and #accounts == 1 and s.at == slot.charged and s.since == slot.born
    and spec.burst == spec.count * spec.common then
    return pack('<BI7', kind + SHORT, slot.charged) .. msgpack(out[1], put(spec.count),
      put(spec.period), put(spec.common), put(s.owed), put(s.remainder), s.low and put(s.low))
  end
  for _, account in ipairs(accounts) do
    n = slot.algorithm.save(out, n, account.spec, account.state, slot)
  end
  return pack('<BI7', kind + 8 * (#accounts - 1), slot.charged) .. msgpack(unpack(out, 1, n))
end

local function load_short(slot, value)
  local over, age, count, period, common, owed, remainder, low = msgunpack(value, 7, 8)
  local sum = age + count + period + common + owed + remainder + (low or 0)
  if over ~= -1 or low == nil or sum - sum ~= 0 then error('a value of another format') end
  count, period, common = get(count), get(period), get(common)
  slot.born = slot.charged - age
  slot.accounts[1] = {
    spec = { count = count, period = period, common = common, burst = count * common },
    state = {
      owed = get(owed), remainder = get(remainder), low = low and get(low),
      at = slot.charged, since = slot.born,
    },
  }
end

local function load(slot, value)
  local head, charged = unpack_from('<BI7', value)
  local kind = head % 8
  if kind ~= slot.kind or head >= 128 then error('a value of another algorithm or format') end
  slot.charged, slot.accounts = charged, {}
  if head == BUCKET + SHORT then return load_short(slot, value) end
  local values, sum = { msgunpack(value, 100, 8) }, 0
  if values[1] ~= -1 then error('a value of another format') end
  for _, found in ipairs(values) do
    if type(found) == 'number' then sum = sum + found end
  end
  if sum - sum ~= 0 then error('a value of another format') end
  slot.born = charged - values[2]
  local n = 2
  for place = 1, floor(head / 8) + 1 do
    local spec, state
    spec, state, n = slot.algorithm.load(values, n, slot)
    slot.accounts[place] = { spec = spec, state = state }
  end
  if n ~= #values then error('a value of another format') end
end

local function slot_of(key, kind)
  local slot = slots[key]
  if slot then
    if slot.broken then error(slot.broken, 0) end
    if slot.kind ~= kind then error('two algorithms on one key', 0) end
    return slot
  end
  slot = { key = key, kind = kind, algorithm = algorithm(kind) }
  slots[key] = slot
  local value = redis.pcall('GET', key)
  if value then
    if type(value) ~= 'string' then
      slot.broken = value.err or 'no string'
    else
      local read, why = pcall(load, slot, value)
      if not read then slot.broken = 'cannot read its value: ' .. tostring(why) end
    end
    if slot.broken then error(slot.broken, 0) end
    slot.stored = true
  end
  return slot
end

-- A state that means nothing is let go, as its key would be.
local function settle_slot(slot)
  slot.changed, slot.ends = true, ledger_ends(slot)
  if slot.ends == 0 then slot.accounts = nil end
end

local function write(slot, now, spare_ms)
  local reply
  if not slot.accounts then
    reply = slot.stored and redis.pcall('DEL', slot.key)
  elseif slot.ends then
    local left_ms = floor((max(slot.ends - now, 0) + 999) / 1000)
    reply = redis.pcall('SET', slot.key, save(slot), 'PX', left_ms + spare_ms)
  else
    -- A total never means nothing by itself: it stays until it is given back or reset.
    reply = redis.pcall('SET', slot.key, save(slot))
  end
  if type(reply) == 'table' and reply.err then slot.broken = reply.err end
end
