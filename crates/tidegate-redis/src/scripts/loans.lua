-- Token loans: tokens of a bucket that nodes have borrowed, and spend without asking.
--
-- What is on loan and not reported as spent is a floor below which the debt never falls: level and loans
-- together never exceed the burst. It is kept as two counters, of one epoch and of the one before. A loan
-- lasts LASTS from its request, and counts until the end of the epoch after its own. So it expires on the
-- nodes before it expires here; the difference covers clocks that drift or are set.
--
-- `s.lent`, which all accounts of a key share, has the epoch and the counters `now` and `before`.

local EPOCH, LASTS = 4000000, 3000000

-- What is on loan at a time, from counters of an earlier time.
local function out_at(lent, time)
  if time >= (lent.epoch + 2) * EPOCH then return 0 end
  if time >= (lent.epoch + 1) * EPOCH then return lent.now end
  return lent.now + lent.before
end

local function lent_bucket()
  local bucket = algorithm(BUCKET)
  local settle, repaid_at = bucket.settle, bucket.repaid_at

  local function refill(s, spec, to, floor)
    local owed, remainder, at = settle(s, spec, to)
    if owed <= floor then owed, remainder = floor, 0 end
    return owed, remainder, at
  end

  -- Advances a state to a time. The refill stops at what is on loan, which falls with every epoch.
  local function advance(s, spec, now)
    local lent = s.lent
    for later = 1, 2 do
      local edge = (lent.epoch + later) * EPOCH
      if s.at < edge then
        local to = now < edge and now or edge
        s.owed, s.remainder, s.at = refill(s, spec, to, out_at(lent, s.at))
      end
    end
    if now >= s.at then
      s.owed, s.remainder, s.at = refill(s, spec, now, out_at(lent, now))
    end
  end

  -- When at most `target` is owed; nil if that never comes by itself.
  local function falls_to(s, spec, target)
    local lent = s.lent
    local then_is = { owed = s.owed, remainder = s.remainder, at = s.at }
    for later = 1, 3 do
      local edge = later < 3 and (lent.epoch + later) * EPOCH
      if not edge or then_is.at < edge then
        local out = out_at(lent, then_is.at)
        if target >= out then
          if then_is.owed <= target then return then_is.at end
          local instant = repaid_at(then_is.remainder, then_is.at, spec, then_is.owed - target)
          if not edge or (instant and instant <= edge) then return instant end
        end
        then_is.owed, then_is.remainder, then_is.at = refill(then_is, spec, edge, out)
      end
    end
    return nil
  end

  local function with_floor(change)
    return function(s, spec, now, charged_at, amount)
      advance(s, spec, now)
      change(s, spec, now, charged_at, amount)
      local out = out_at(s.lent, s.at)
      if s.owed <= out then s.owed, s.remainder = out, 0 end
    end
  end

  local lent_bucket = {}
  for name, value in pairs(bucket) do
    lent_bucket[name] = value
  end
  lent_bucket.advance = advance
  lent_bucket.evaluate = function(s, spec, now, cost)
    advance(s, spec, now)
    local burst = spec.burst
    if s.owed + cost <= burst then return nil end
    if cost > burst then return NEVER end
    local instant = falls_to(s, spec, burst - cost)
    return instant and max(instant - now, 0) or NEVER
  end
  lent_bucket.charge = function(s, spec, now, cost)
    advance(s, spec, now)
    bucket.charge(s, spec, now, cost)
  end
  -- `low` is zero: the refill may have paid all of an earlier charge.
  lent_bucket.refund = with_floor(bucket.refund)
  lent_bucket.surcharge = with_floor(bucket.surcharge)
  lent_bucket.owed = function(s, spec, now)
    advance(s, spec, now)
    return s.owed
  end
  lent_bucket.reading = function(s, spec, now)
    advance(s, spec, now)
    local full_at = falls_to(s, spec, 0)
    return max(spec.burst - s.owed, 0), full_at and max(full_at - now, 0) or NEVER
  end
  lent_bucket.ends = function(s, spec)
    if s.owed == 0 and out_at(s.lent, s.at) == 0 then return 0 end
    return falls_to(s, spec, 0)
  end
  return lent_bucket
end

-- Turns an entry into one that nodes have borrowed from.
local function lends(entry, lent)
  made.lent_bucket = made.lent_bucket or lent_bucket()
  entry.lent, entry.algorithm = lent, made.lent_bucket
  for _, account in ipairs(entry.accounts) do
    account.state.lent, account.state.low = lent, 0
  end
end

-- Advances an entry to the present. An epoch never ends twice, whatever the clock does.
local function settle_lent(entry, now)
  local lent = entry.lent
  for _, account in ipairs(entry.accounts) do
    entry.algorithm.advance(account.state, account.spec, now)
  end
  local epoch = (now - now % EPOCH) / EPOCH
  if epoch > lent.epoch then
    lent.before = epoch == lent.epoch + 1 and lent.now or 0
    lent.epoch, lent.now = epoch, 0
  end
end

-- Writes the counters as three numbers of a value.
local function save_lent(entry, out, n)
  local lent = entry.lent
  out[n + 1], out[n + 2], out[n + 3] = lent.epoch, put(lent.now), put(lent.before)
  return n + 3
end

local function load_lent(entry, values, n)
  local epoch, now, before = values[n + 1], values[n + 2], values[n + 3]
  if type(epoch) ~= 'number' or type(now) ~= 'number' or type(before) ~= 'number' then
    error('a value of another format', 0)
  end
  lends(entry, { epoch = epoch, now = get(now), before = get(before) })
  return n + 3
end

local function is_lent(entry)
  return entry.lent and out_at(entry.lent, entry.charged) > 0
end
