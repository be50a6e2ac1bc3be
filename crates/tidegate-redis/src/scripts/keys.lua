-- Keys and their values.
--
-- A value is a byte for the algorithm and the number of accounts, the time of the last charge in 7
-- bytes, and MessagePack: how long before that the key was born, then the accounts. Most keys are
-- buckets that have owed something since they were born or since the last charge, with a burst that
-- is their count, and small numbers: they have a short form of 28 bytes, as many as fit into an
-- allocation of 48. Of a bucket that nodes have borrowed from, the counters come last.
--
-- Nothing that is infinite, or no number at all, may come in from a value that somebody else wrote:
-- there would be no end to it.

local SHORT = 64
-- Head, charged, age, count, period, common in units, remainder in commons, owed, low.
local SHORT_FORM = '<BI7I5I2I2BI2I4I4'
local NO_LOW = 4294967295
-- Added to the head of a bucket that nodes have borrowed from.
local LENT = 128

-- Keys of this batch, so that asks see what those before them did, and each is written once.
local slots = {}

-- The short form of a bucket, or nil.
local function save_short(slot, spec, s)
  local charged, born, common, low = slot.charged, slot.born, spec.common, s.low or NO_LOW
  if s.at ~= charged or s.since ~= (s.low and born or charged) or charged - born >= 1099511627776
    or spec.burst ~= spec.count * common or spec.count > 65535 or spec.period > 65535
    or common % 1000000 ~= 0 or common > 255000000 or s.remainder % common ~= 0
    or s.remainder >= spec.period * common or s.owed > NO_LOW or low > NO_LOW
    or s.low == NO_LOW then
    return nil
  end
  return pack(SHORT_FORM, BUCKET + SHORT, charged, charged - born, spec.count, spec.period,
    common / 1000000, s.remainder / common, s.owed, low)
end

-- `asked` is what the ask says of the key: nearly always what is stored, and then not made again.
local function load_short(slot, value, asked)
  local _, charged, age, count, period, common, remainder, owed, low =
    unpack_from(SHORT_FORM, value)
  if #value ~= 28 or period == 0 or common == 0 then error('a value of another format') end
  common = common * 1000000
  local born, spec = charged - age, asked
  if asked.count ~= count or asked.period ~= period or asked.common ~= common
    or asked.burst ~= count * common then
    spec = { count = count, period = period, common = common, burst = count * common }
  end
  slot.born, slot.charged = born, charged
  slot.accounts = { {
    spec = spec,
    state = {
      owed = owed, remainder = remainder * common, low = low ~= NO_LOW and low,
      at = charged, since = low ~= NO_LOW and born or charged,
    },
  } }
end

local function save(slot)
  local accounts, kind = slot.accounts, slot.kind
  local lent = is_lent(slot)
  if kind == BUCKET and #accounts == 1 and not lent then
    local short = save_short(slot, accounts[1].spec, accounts[1].state)
    if short then return short end
  end
  local out, n = { slot.charged - slot.born }, 1
  for _, account in ipairs(accounts) do
    n = slot.algorithm.save(out, n, account.spec, account.state, slot)
  end
  if lent then n, kind = save_lent(slot, out, n), kind + LENT end
  return pack('<BI7', kind + 8 * (#accounts - 1), slot.charged) .. msgpack(unpack(out, 1, n))
end

local function load(slot, value, asked)
  local head = byte(value)
  if head == BUCKET + SHORT and slot.kind == BUCKET then return load_short(slot, value, asked) end
  local _, charged = unpack_from('<BI7', value)
  local lent = head >= LENT and slot.kind == BUCKET
  if lent then head = head - LENT end
  if head % 8 ~= slot.kind or head >= SHORT then error('a value of another algorithm or format') end
  slot.charged, slot.accounts = charged, {}
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
  if lent then
    lends(slot, { epoch = values[n + 1], now = get(values[n + 2]), before = get(values[n + 3]) })
    n = n + 3
  end
  if n ~= #values then error('a value of another format') end
end

local function slot_of(key, kind, asked)
  local slot = slots[key]
  if slot then
    if slot.broken then error(slot.broken, 0) end
    if slot.kind ~= kind then error('two algorithms on one key', 0) end
    return slot
  end
  -- All fields at once: a table that grows is made again and again.
  slot = {
    key = key, kind = kind, algorithm = algorithm(kind), accounts = nil, born = nil, charged = nil,
    stored = nil, changed = nil, broken = nil, ends = nil, lent = nil,
  }
  slots[key] = slot
  local value = redis.pcall('GET', key)
  if value then
    if type(value) ~= 'string' then
      slot.broken = value.err or 'no string'
    else
      -- Until it has been read: whatever goes wrong, the ask that wanted it ends here.
      slot.broken = 'cannot read its value'
      load(slot, value, asked)
      slot.broken = nil
    end
    if slot.broken then error(slot.broken, 0) end
    slot.stored = true
  end
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

local function write(slot, now, spare_ms)
  local reply
  local ends = slot.ends or (slot.accounts and ledger_ends(slot))
  if not slot.accounts or ends == 0 then
    reply = slot.stored and redis.pcall('DEL', slot.key)
  elseif ends then
    local left_ms = floor((ends > now and ends - now + 999 or 0) / 1000)
    -- As text, which Lua makes of whole numbers much faster than Redis does of any.
    reply = redis.pcall('SET', slot.key, save(slot), 'PX', format('%d', left_ms + spare_ms))
  else
    -- A total never means nothing by itself: it stays until it is given back or reset.
    reply = redis.pcall('SET', slot.key, save(slot))
  end
  if type(reply) == 'table' and reply.err then slot.broken = reply.err end
end
