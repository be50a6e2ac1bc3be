-- Tidegate's one script: decides a batch of asks, each all or nothing.
--
-- KEYS     the keys of all asks, one behind the other; an ask says how many are its own
-- ARGV[1]  the time to go by in microseconds (8 bytes; tests set it), or empty: the server's own
-- ARGV[2+] one ask each, packed by codec.rs
-- Reply    one string per ask: byte 0 and the answer, or byte 1 and why there is none
--
-- The algorithms are those of the crate `tidegate`, function by function, and must stay so: a test
-- sends the same asks to both and compares every number. What they mean is written down there; the
-- comments here say only what is different in Redis.
--
-- All numbers are whole. Amounts are millionths, times microseconds since the epoch. Lua's numbers
-- are doubles, exact up to 2^53: amounts and times stay below it, products go through `muldiv`, and
-- what would still be larger counts as MAX (in time: 285 years).
--
-- The body runs anew for every call, so the algorithms are made when one is first needed.

local MAX = 9007199254740991
-- A denial that no waiting ends, and a reset that never comes.
local NEVER = -1
-- A key goes this long after its state means nothing.
local MARGIN_MS = 1000

local BUCKET, LOG, COUNTER, FIXED, QUOTA, PLACES, TOTAL, CEILING = 1, 2, 3, 4, 5, 6, 7, 8

local byte, sub, floor = string.byte, string.sub, math.floor
local pack, unpack_from = struct.pack, struct.unpack
local msgpack, msgunpack = cmsgpack.pack, cmsgpack.unpack_limit

---------------------------------------------------------------------------------------------------
-- Arithmetic

-- The quotient and the remainder of (a * b + c) / d, exactly. A quotient of more than MAX is only
-- known to be one.
local function muldiv(a, b, c, d)
  local product = a * b + c
  if product <= MAX then
    local rest = product % d
    return (product - rest) / d, rest
  end
  -- The digits of `a`, from the highest, times what is left of `b`: as large as still fits.
  local b_rest, c_rest = b % d, c % d
  local quotient, rest, shorter = 0, 0, 1
  while shorter * d * 4 <= MAX do
    shorter = shorter * 2
  end
  if shorter > 1 then
    local place = 1
    while place * shorter <= a do
      place = place * shorter
    end
    local left = a
    while place >= 1 do
      local digit = floor(left / place)
      left = left - digit * place
      local sum = rest * shorter + digit * b_rest
      rest = sum % d
      quotient = quotient * shorter + (sum - rest) / d
      place = place / shorter
    end
  else
    -- Bit by bit, without ever adding two numbers that are too large together.
    local place, left = 4503599627370496, a
    while place >= 1 do
      quotient = quotient * 2
      if rest >= d - rest then
        rest, quotient = rest - (d - rest), quotient + 1
      else
        rest = rest + rest
      end
      if left >= place then
        left = left - place
        if rest >= d - b_rest then
          rest, quotient = rest - (d - b_rest), quotient + 1
        else
          rest = rest + b_rest
        end
      end
      place = place / 2
    end
  end
  if rest >= d - c_rest then
    rest, quotient = rest - (d - c_rest), quotient + 1
  else
    rest = rest + c_rest
  end
  return quotient + a * ((b - b_rest) / d) + (c - c_rest) / d, rest
end

local function muldiv_up(a, b, c, d)
  local quotient, rest = muldiv(a, b, c, d)
  return rest > 0 and quotient + 1 or quotient
end

local function min(a, b) return a < b and a or b end
local function max(a, b) return a > b and a or b end

-- How much of a surcharge still counts beside what is owed already.
local function surchargeable(limit, owed, extra)
  return min(extra, max(2 * limit - owed, 0))
end

-- Numbers in values: whole millions (units, seconds) are much shorter than millionths.
local function put(number)
  return number % 1000000 == 0 and number / 1000000 or -number
end

local function get(short)
  return short < 0 and -short or short * 1000000
end

---------------------------------------------------------------------------------------------------
-- The algorithms. Each has:
--   fresh()                      the state of a key that nobody has used
--   evaluate(s, spec, now, cost) nil if the cost fits, else how long to wait, or NEVER
--   charge(s, spec, now, cost, holder), refund and surcharge(s, spec, now, charged_at, amount)
--   reading(s, spec, now)        what could be spent, and when nothing is owed any more, or NEVER
--   ends(s, spec)                from when the state equals a fresh one, or nil
--   same_pace(one, other)        whether one state serves both specs
--   read_spec(ask, at)           the spec in an ask, and where it ends
--   save(out, n, account, slot), load(values, n, slot): an account in a value, as numbers

local function token_bucket()
  -- The rate is `count` per `period` in lowest terms; both times `common` are what the policy says,
  -- and the unit of the remainder.
  local function settle(s, spec, now)
    local owed, at = min(s.owed, 2 * spec.burst), s.at
    local to = max(now, at)
    if owed == 0 then return 0, 0, to end
    local remainder, common = s.remainder, spec.common
    if remainder >= spec.period * common then remainder = 0 end
    if to == at then return owed, remainder, to end
    local finer = remainder % common
    local refilled, left =
      muldiv(to - at, spec.count, (remainder - finer) / common, spec.period)
    if refilled >= owed then return 0, 0, to end
    return owed - refilled, left * common + finer, to
  end

  local function repaid_at(remainder, at, spec, micros)
    if spec.count == 0 then return nil end
    local paid = floor(remainder / spec.common)
    return min(at + muldiv_up(micros - 1, spec.period, spec.period - paid, spec.count), MAX)
  end

  local function refilled_since(spec, since, now)
    return muldiv_up(max(now - since, 0), spec.count, 0, spec.period)
  end

  -- A debt without a later charge has no low-water mark: `low` is then false.
  local function lower(s, owed, remainder)
    local least = remainder > 0 and owed - 1 or owed
    if not s.low or least < s.low then s.low = least end
  end

  local function refund(s, spec, now, charged_at, cost)
    if cost == 0 then return end
    local owed, remainder, at = settle(s, spec, now)
    if owed > 0 then
      local given = 0
      if charged_at >= s.since then
        local unpaid = max(cost - refilled_since(spec, charged_at, at), 0)
        local certain = max(unpaid, s.low and min(cost, s.low) or cost)
        given = min(certain, owed)
      end
      if given < cost then
        s.low = 0
      elseif s.low then
        s.low = max(s.low - cost, 0)
      end
      owed = owed - given
      if owed == 0 then remainder = 0 end
    end
    s.owed, s.remainder, s.at = owed, remainder, at
  end

  return {
    fresh = function() return { owed = 0, remainder = 0, at = 0, since = 0, low = 0 } end,
    evaluate = function(s, spec, now, cost)
      local owed, remainder, at = settle(s, spec, now)
      local burst = spec.burst
      if owed + cost <= burst then return nil end
      if cost > burst then return NEVER end
      local instant = repaid_at(remainder, at, spec, owed - (burst - cost))
      return instant and max(instant - now, 0) or NEVER
    end,
    charge = function(s, spec, now, cost)
      local owed, remainder, at = settle(s, spec, now)
      if owed == 0 then
        s.since, s.low = at, false
      else
        lower(s, owed, remainder)
      end
      s.owed, s.remainder, s.at = min(owed + cost, MAX), remainder, at
    end,
    refund = refund,
    surcharge = function(s, spec, now, charged_at, extra)
      local owed, remainder, at = settle(s, spec, now)
      if extra == 0 or owed == 0 or refilled_since(spec, charged_at, at) >= spec.burst then
        return
      end
      lower(s, owed, remainder)
      s.owed, s.remainder, s.at =
        owed + surchargeable(spec.burst, owed, extra), remainder, at
    end,
    reading = function(s, spec, now)
      local owed, remainder, at = settle(s, spec, now)
      if owed == 0 then return spec.burst, 0 end
      local full_at = repaid_at(remainder, at, spec, owed)
      return max(spec.burst - owed, 0), full_at and max(full_at - now, 0) or NEVER
    end,
    ends = function(s, spec)
      local owed, remainder, at = settle(s, spec, s.at)
      if owed == 0 then return 0 end
      return repaid_at(remainder, at, spec, owed)
    end,
    same_pace = function(one, other)
      return one.count == other.count and one.period == other.period
        and one.common == other.common and one.burst == other.burst
    end,
    read_spec = function(ask, at)
      local count, period, common, burst, next = unpack_from('<I8I8I8I8', ask, at)
      return { count = count, period = period, common = common, burst = burst }, next
    end,
    save = function(out, n, spec, s, slot)
      out[n + 1], out[n + 2], out[n + 3] = put(spec.count), put(spec.period), put(spec.common)
      out[n + 4], out[n + 5], out[n + 6] = put(spec.burst), put(s.owed), put(s.remainder)
      out[n + 7], out[n + 8] = s.low and put(s.low), s.at - slot.charged
      out[n + 9] = s.since - slot.born
      return n + 9
    end,
    load = function(values, n, slot)
      local spec = {
        count = get(values[n + 1]), period = get(values[n + 2]),
        common = get(values[n + 3]), burst = get(values[n + 4]),
      }
      local low = values[n + 7]
      return spec, {
        owed = get(values[n + 5]), remainder = get(values[n + 6]), low = low and get(low),
        at = values[n + 8] + slot.charged, since = values[n + 9] + slot.born,
      }, n + 9
    end,
  }
end

-- The newest entry stands by itself; the older ones are a string of pairs, the time since the entry
-- before and the cost, that is read from the front only as far as needed, cut there, and appended
-- to. `base` is the time that the first pair counts from, `last` that of the last one.
local function sliding_window()
  local function entry(s, offset)
    local next, delta, cost = msgunpack(s.log, 2, offset)
    return next, delta, get(cost)
  end

  -- What is spent in the window, and where its first older entry is: its place, base and how many
  -- there are from it on; -1 if even the newest is out.
  local function within(s, spec, now)
    local gone_until = max(now, s.newest) - spec.window
    if s.newest <= gone_until then return 0, 0, s.last, -1 end
    local spent, offset, base, count = s.total, 0, s.base, s.count
    while count > 0 do
      local next, delta, cost = entry(s, offset)
      if base + delta > gone_until then break end
      spent, base, offset, count = spent - cost, base + delta, next, count - 1
    end
    return spent, offset, base, count
  end

  -- Puts other pairs in the place of those between two offsets; -1 is the end.
  local function splice(s, from, to, pairs)
    s.log = sub(s.log, 1, from) .. pairs .. (to < 0 and '' or sub(s.log, to + 1))
  end

  -- The newest is gone: the last of the older ones is the newest now.
  local function step_back(s)
    if s.count == 0 then
      s.newest, s.newest_cost = 0, 0
      return
    end
    local offset, at, before, cost, start = 0, s.base, s.base, 0, 0
    for _ = 1, s.count do
      local next, delta, found = entry(s, offset)
      start, before, at, cost, offset = offset, at, at + delta, found, next
    end
    splice(s, start, -1, '')
    s.count, s.last, s.newest, s.newest_cost = s.count - 1, before, at, cost
  end

  -- Adds to the entry that holds a charge, its own or the later one that it was merged into, what
  -- `by(cost)` says; void once it is older than the window.
  local function change(s, spec, now, charged_at, by)
    if s.newest_cost == 0 or s.newest < charged_at
      or charged_at + spec.window <= max(now, s.newest) then
      return
    end
    local offset, before, place = 0, s.base, 1
    while charged_at <= s.last and place <= s.count do
      local next, delta, cost = entry(s, offset)
      if before + delta >= charged_at then
        local added = by(cost)
        s.total = s.total + added
        if cost + added > 0 then
          splice(s, offset, next, msgpack(delta, put(cost + added)))
        elseif place < s.count then
          local after, further, following = entry(s, next)
          splice(s, offset, after, msgpack(delta + further, put(following)))
          s.count = s.count - 1
        else
          splice(s, offset, -1, '')
          s.count, s.last = s.count - 1, before
        end
        return
      end
      before, offset, place = before + delta, next, place + 1
    end
    local added = by(s.newest_cost)
    s.total, s.newest_cost = s.total + added, s.newest_cost + added
    if s.newest_cost == 0 then step_back(s) end
  end

  local function ends(s, spec)
    return s.newest_cost == 0 and 0 or s.newest + spec.window
  end

  return {
    fresh = function()
      return { total = 0, count = 0, base = 0, last = 0, newest = 0, newest_cost = 0, log = '' }
    end,
    evaluate = function(s, spec, now, cost)
      local spent, offset, base, count = within(s, spec, now)
      local limit = spec.limit
      if spent + cost <= limit then return nil end
      if cost > limit then return NEVER end
      for _ = 1, count do
        local next, delta, found = entry(s, offset)
        offset, base, spent = next, base + delta, spent - found
        if spent + cost <= limit then return max(base + spec.window - now, 0) end
      end
      return max(s.newest + spec.window - now, 0)
    end,
    charge = function(s, spec, now, cost)
      now = max(now, s.newest)
      cost = min(cost, MAX - s.total)
      if cost == 0 then return end
      local spent, offset, base, count = within(s, spec, now)
      s.total = spent + cost
      if count < 0 then
        s.count, s.base, s.last, s.log, s.newest, s.newest_cost = 0, now, now, '', now, cost
        return
      end
      if count == 0 then
        s.log = ''
      elseif offset > 0 then
        s.log = sub(s.log, offset + 1)
      end
      s.count, s.base = count, base
      local room = min(max(floor(spec.limit / 1000000), 1024), 65536)
      if s.newest_cost == 0 then
        s.base, s.last, s.newest, s.newest_cost = now, now, now, cost
      elseif s.newest == now or count + 1 >= room then
        s.newest, s.newest_cost = now, s.newest_cost + cost
      else
        s.log = s.log .. msgpack(s.newest - (count > 0 and s.last or base), put(s.newest_cost))
        s.count, s.last, s.newest, s.newest_cost = count + 1, s.newest, now, cost
      end
    end,
    refund = function(s, spec, now, charged_at, cost)
      change(s, spec, now, charged_at, function(found) return -min(cost, found) end)
    end,
    surcharge = function(s, spec, now, charged_at, extra)
      local raised = min(surchargeable(spec.limit, (within(s, spec, now)), extra), MAX - s.total)
      change(s, spec, now, charged_at, function() return raised end)
    end,
    reading = function(s, spec, now)
      return max(spec.limit - (within(s, spec, now)), 0), max(ends(s, spec) - now, 0)
    end,
    ends = ends,
    same_pace = function(one, other) return one.window == other.window end,
    save = function(out, n, spec, s, slot)
      out[n + 1], out[n + 2], out[n + 3] = put(spec.limit), put(spec.window), put(s.total)
      out[n + 4], out[n + 5], out[n + 6] = s.newest - slot.charged, put(s.newest_cost), s.count
      out[n + 7], out[n + 8], out[n + 9] = s.newest - s.last, s.last - s.base, s.log
      return n + 9
    end,
    load = function(values, n, slot)
      local newest = values[n + 4] + slot.charged
      local last = newest - values[n + 7]
      return { limit = get(values[n + 1]), window = get(values[n + 2]) }, {
        total = get(values[n + 3]), newest = newest, newest_cost = get(values[n + 5]),
        count = values[n + 6], last = last, base = last - values[n + 8], log = values[n + 9],
      }, n + 9
    end,
  }
end

local function sliding_counter()
  local function roll(s, now)
    local window, start = s.window, s.start
    if window == 0 or now - start < window then return start, s.current, s.previous end
    local into = (now - start) % window
    local previous = now - start < 2 * window and s.current or 0
    return now - into, 0, previous
  end

  local function estimate(start, window, current, previous, now)
    local seen = max(window - max(now - start, 0), 0)
    return min(muldiv_up(previous, seen, 0, max(window, 1)) + current, MAX)
  end

  local function faded_at(start, window, previous, room)
    return start + max(window - muldiv(room, window, 0, max(previous, 1)), 0)
  end

  local function empty_at(start, window, current, previous)
    if current > 0 then return start + 2 * window end
    return previous > 0 and start + window or 0
  end

  -- Changes the counter that holds a charge by what `by(counter)` says.
  local function change(s, now, charged_at, by)
    local start, current, previous = roll(s, now)
    if charged_at >= start then
      current = by(current)
    elseif charged_at >= start - s.window then
      previous = by(previous)
    else
      return
    end
    if current and previous then s.start, s.current, s.previous = start, current, previous end
  end

  return {
    fresh = function() return { start = 0, window = 0, current = 0, previous = 0 } end,
    evaluate = function(s, spec, now, cost)
      local start, current, previous = roll(s, now)
      local window, limit = s.window, spec.limit
      if estimate(start, window, current, previous, now) + cost <= limit then return nil end
      if cost > limit then return NEVER end
      local room, instant = limit - cost, nil
      if room >= current then
        instant = faded_at(start, window, previous, room - current)
      else
        instant = faded_at(start + window, window, current, room)
      end
      return max(instant - now, 0)
    end,
    charge = function(s, spec, now, cost)
      local start, current, previous = roll(s, now)
      if s.window ~= spec.window then
        current, previous = estimate(start, s.window, current, previous, now), 0
        now = max(now, start)
        start, s.window = now - now % spec.window, spec.window
      end
      s.start, s.current, s.previous = start, min(current + cost, MAX), previous
    end,
    refund = function(s, _, now, charged_at, cost)
      change(s, now, charged_at, function(counter) return max(counter - cost, 0) end)
    end,
    surcharge = function(s, spec, now, charged_at, extra)
      local start, current, previous = roll(s, now)
      local owed = estimate(start, s.window, current, previous, now)
      local raised = surchargeable(spec.limit, owed, extra)
      change(s, now, charged_at, function(counter)
        return counter > 0 and min(counter + raised, MAX)
      end)
    end,
    reading = function(s, spec, now)
      local start, current, previous = roll(s, now)
      return max(spec.limit - estimate(start, s.window, current, previous, now), 0),
        max(empty_at(start, s.window, current, previous) - now, 0)
    end,
    ends = function(s) return empty_at(s.start, s.window, s.current, s.previous) end,
    same_pace = function(one, other) return one.window == other.window end,
    save = function(out, n, spec, s, slot)
      out[n + 1], out[n + 2], out[n + 3] = put(spec.limit), put(spec.window), put(s.window)
      out[n + 4], out[n + 5], out[n + 6] = s.start - slot.charged, put(s.current), put(s.previous)
      return n + 6
    end,
    load = function(values, n, slot)
      return { limit = get(values[n + 1]), window = get(values[n + 2]) }, {
        window = get(values[n + 3]), start = values[n + 4] + slot.charged,
        current = get(values[n + 5]), previous = get(values[n + 6]),
      }, n + 6
    end,
  }
end

-- What fixed windows and quotas share. `window(spec, now)` is where the window of a time starts and
-- ends; the time is never before the state's.
local function counted(window)
  local function used(s, start) return s.at >= start and s.used or 0 end

  return {
    fresh = function() return { at = 0, used = 0 } end,
    evaluate = function(s, spec, now, cost)
      local start, finish = window(spec, max(now, s.at))
      if used(s, start) + cost <= spec.limit then return nil end
      return cost > spec.limit and NEVER or max(finish - now, 0)
    end,
    charge = function(s, spec, now, cost)
      local start = window(spec, max(now, s.at))
      s.used = min(used(s, start) + cost, MAX)
      s.at = max(max(now, s.at), start)
    end,
    refund = function(s, spec, now, charged_at, cost)
      local start = window(spec, max(now, s.at))
      if charged_at >= start and s.at >= start then s.used = max(s.used - cost, 0) end
    end,
    surcharge = function(s, spec, now, charged_at, extra)
      local start = window(spec, max(now, s.at))
      local owed = used(s, start)
      if charged_at >= start and owed > 0 then
        s.used = min(owed + surchargeable(spec.limit, owed, extra), MAX)
      end
    end,
    reading = function(s, spec, now)
      local start, finish = window(spec, max(now, s.at))
      return max(spec.limit - used(s, start), 0), max(finish - now, 0)
    end,
    ends = function(s, spec)
      if spec.start and s.at < spec.start then return s.at end
      local start, finish = window(spec, s.at)
      return used(s, start) == 0 and s.at or finish
    end,
  }
end

local function fixed_window()
  local fixed = counted(function(spec, now)
    local start = now - now % spec.window
    return start, start + spec.window
  end)
  fixed.same_pace = function(one, other) return one.window == other.window end
  fixed.save = function(out, n, spec, s, slot)
    out[n + 1], out[n + 2] = put(spec.limit), put(spec.window)
    out[n + 3], out[n + 4] = s.at - slot.charged, put(s.used)
    return n + 4
  end
  fixed.load = function(values, n, slot)
    return { limit = get(values[n + 1]), window = get(values[n + 2]) },
      { at = values[n + 3] + slot.charged, used = get(values[n + 4]) }, n + 4
  end
  return fixed
end

local function quota()
  local calendar = counted(function(spec, now)
    now = max(now, spec.start)
    if now < spec.finish then return spec.start, spec.finish end
    if now < spec.next_finish then return spec.finish, spec.next_finish end
    local length = max(spec.next_finish - spec.finish, 1)
    local start = now - (now - spec.next_finish) % length
    return start, start + length
  end)
  calendar.same_pace = function(one, other) return one.unit == other.unit end
  calendar.read_spec = function(ask, at)
    local limit, unit, start, finish, next_finish, next = unpack_from('<I8I8I8I8I8', ask, at)
    return {
      limit = limit, unit = unit, start = start, finish = finish, next_finish = next_finish,
    }, next
  end
  calendar.save = function(out, n, spec, s, slot)
    out[n + 1], out[n + 2], out[n + 3] = put(spec.limit), spec.unit, put(spec.start)
    out[n + 4], out[n + 5] = put(spec.finish), put(spec.next_finish)
    out[n + 6], out[n + 7] = s.at - slot.charged, put(s.used)
    return n + 7
  end
  calendar.load = function(values, n, slot)
    return {
      limit = get(values[n + 1]), unit = values[n + 2], start = get(values[n + 3]),
      finish = get(values[n + 4]), next_finish = get(values[n + 5]),
    }, { at = values[n + 6] + slot.charged, used = get(values[n + 7]) }, n + 7
  end
  return calendar
end

-- Holders are numbers of 64 bits: strings of 8 bytes here. They stand in the order in which their
-- leases run out, those who came first before others of the same instant.
local function concurrency()
  local function insert(s, holder)
    local place = #s.holders + 1
    while place > 1 and s.holders[place - 1].expires > holder.expires do
      place = place - 1
    end
    table.insert(s.holders, place, holder)
  end

  -- How much is held, and the place of the first whose lease has not run out.
  local function alive(s, now)
    local held, first = 0, #s.holders + 1
    for place = #s.holders, 1, -1 do
      if s.holders[place].expires <= now then break end
      held, first = held + s.holders[place].cost, place
    end
    return min(held, MAX), first
  end

  local function retain(s, keep)
    local kept = {}
    for _, holder in ipairs(s.holders) do
      if keep(holder) then kept[#kept + 1] = holder end
    end
    local changed = #kept < #s.holders
    s.holders = kept
    return changed
  end

  return {
    fresh = function() return { holders = {} } end,
    evaluate = function(s, spec, now, cost)
      local held, first = alive(s, now)
      if held + cost <= spec.limit then return nil end
      if cost > spec.limit then return NEVER end
      local free_at = now
      for place = first, #s.holders do
        held, free_at = held - s.holders[place].cost, s.holders[place].expires
        if held + cost <= spec.limit then break end
      end
      return max(free_at - now, 0)
    end,
    charge = function(s, spec, now, cost, id)
      retain(s, function(holder) return holder.expires > now end)
      insert(s, { id = id, cost = cost, expires = now + spec.window })
    end,
    refund = function() end,
    surcharge = function() end,
    release = function(s, id)
      return retain(s, function(holder) return holder.id ~= id end)
    end,
    renew = function(s, spec, now, id)
      for place, holder in ipairs(s.holders) do
        if holder.id == id and holder.expires > now then
          table.remove(s.holders, place)
          holder.expires = now + spec.window
          insert(s, holder)
          return true
        end
      end
      return false
    end,
    reading = function(s, spec, now)
      local held, first = alive(s, now)
      local last = first <= #s.holders and s.holders[#s.holders].expires or now
      return max(spec.limit - held, 0), max(last - now, 0)
    end,
    ends = function(s)
      local last = s.holders[#s.holders]
      return last and last.expires or 0
    end,
    same_pace = function() return true end,
    save = function(out, n, spec, s, slot)
      local list = {}
      for place, holder in ipairs(s.holders) do
        list[place] = { holder.id, put(holder.cost), holder.expires - slot.charged }
      end
      out[n + 1], out[n + 2], out[n + 3] = put(spec.limit), put(spec.window), list
      return n + 3
    end,
    load = function(values, n, slot)
      local holders = {}
      for place, held in ipairs(values[n + 3]) do
        holders[place] = { id = held[1], cost = get(held[2]), expires = held[3] + slot.charged }
      end
      return { limit = get(values[n + 1]), window = get(values[n + 2]) },
        { holders = holders }, n + 3
    end,
  }
end

local function total()
  return {
    fresh = function() return { used = 0 } end,
    evaluate = function(s, spec, _, cost)
      if s.used + cost > spec.limit then return NEVER end
      return nil
    end,
    charge = function(s, _, _, cost) s.used = min(s.used + cost, MAX) end,
    refund = function(s, _, _, _, cost) s.used = max(s.used - cost, 0) end,
    surcharge = function(s, spec, _, _, extra)
      if s.used > 0 then
        s.used = min(s.used + surchargeable(spec.limit, s.used, extra), MAX)
      end
    end,
    reading = function(s, spec) return max(spec.limit - s.used, 0), NEVER end,
    ends = function(s)
      if s.used == 0 then return 0 end
      return nil
    end,
    same_pace = function() return true end,
    save = function(out, n, spec, s)
      out[n + 1], out[n + 2] = put(spec.limit), put(s.used)
      return n + 2
    end,
    load = function(values, n)
      return { limit = get(values[n + 1]) }, { used = get(values[n + 2]) }, n + 2
    end,
    read_spec = function(ask, at)
      local limit, next = unpack_from('<I8', ask, at)
      return { limit = limit }, next
    end,
  }
end

local makers =
  { token_bucket, sliding_window, sliding_counter, fixed_window, quota, concurrency, total, total }
local made = {}

local function algorithm(kind)
  local one = made[kind]
  if not one then
    one = makers[kind]()
    made[kind] = one
  end
  return one
end

local function read_spec(kind, ask, at)
  local read = algorithm(kind).read_spec
  if read then return read(ask, at) end
  local limit, window, next = unpack_from('<I8I8', ask, at)
  return { limit = limit, window = window }, next
end

---------------------------------------------------------------------------------------------------
-- Ledgers: an account for each pace that a key was charged at, in the field order of the crate.

local ACCOUNTS_MAX = 8

local function own_account(slot, spec)
  local same_pace = slot.algorithm.same_pace
  for _, account in ipairs(slot.accounts) do
    if same_pace(account.spec, spec) then return account end
  end
  return nil
end

-- The state that a spec is under: of its pace or, where there is none yet, the one that leaves the
-- least to it.
local function state_for(slot, spec, now)
  local accounts = slot.accounts
  if #accounts == 1 then return accounts[1].state end
  local own = own_account(slot, spec)
  if own then return own.state end
  local strictest, least = nil, nil
  for _, account in ipairs(accounts) do
    local left = slot.algorithm.reading(account.state, spec, now)
    if not least or left < least then strictest, least = account.state, left end
  end
  return strictest
end

local function close_where_first_over(slot)
  local accounts, ends = slot.accounts, slot.algorithm.ends
  local function ends_at(account) return ends(account.state, account.spec) or MAX end
  local soonest = 2
  for place = 3, #accounts do
    if ends_at(accounts[place]) < ends_at(accounts[soonest]) then soonest = place end
  end
  local closed = accounts[soonest]
  accounts[soonest] = accounts[#accounts]
  accounts[#accounts] = nil
  if ends_at(accounts[1]) < ends_at(closed) then accounts[1] = closed end
end

local function open(slot, spec, now)
  local own = own_account(slot, spec)
  if own then
    own.spec = spec
    return
  end
  local state = {}
  for name, value in pairs(state_for(slot, spec, now)) do
    state[name] = value
  end
  local accounts = slot.accounts
  while #accounts >= ACCOUNTS_MAX do
    close_where_first_over(slot)
  end
  accounts[#accounts + 1] = { spec = spec, state = state }
end

local function close_what_is_over(slot, spec, now)
  local accounts = slot.accounts
  if #accounts == 1 then return end
  local same_pace, ends = slot.algorithm.same_pace, slot.algorithm.ends
  local function live(account)
    if same_pace(account.spec, spec) then return true end
    local at = ends(account.state, account.spec)
    return not at or at > now
  end
  local kept = { accounts[1] }
  for place = 2, #accounts do
    if live(accounts[place]) then kept[#kept + 1] = accounts[place] end
  end
  if not live(kept[1]) and #kept > 1 then
    kept[1] = kept[#kept]
    kept[#kept] = nil
  end
  slot.accounts = kept
end

-- From when the whole ledger equals a new one; nil if that never comes by itself.
local function ledger_ends(slot)
  local latest = 0
  for _, account in ipairs(slot.accounts) do
    local at = slot.algorithm.ends(account.state, account.spec)
    if not at then return nil end
    latest = max(latest, at)
  end
  return latest
end

---------------------------------------------------------------------------------------------------
-- Keys and their values.
--
-- A value is a byte for the algorithm and the number of accounts, the time of the last charge in 7
-- bytes, and MessagePack: how long before that the key was born, then the accounts. A bucket that
-- has owed something ever since it was born, and whose burst is its count, is by far the most
-- common: it leaves out the burst and the two times that follow from others.

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
  if over ~= -1 then error('a value of another format') end
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
  local values = { msgunpack(value, 100, 8) }
  if values[1] ~= -1 then error('a value of another format') end
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

---------------------------------------------------------------------------------------------------
-- Asks

-- The keys that the ask at work uses, and whether it has begun to change them.
local used, changing

local function evaluate(level, now)
  local slot, spec = level.slot, level.spec
  if not slot then
    if level.cost > spec.limit then return NEVER end
    return nil
  end
  local state = slot.accounts and state_for(slot, spec, now) or slot.algorithm.fresh()
  return slot.algorithm.evaluate(state, spec, now, level.cost)
end

local function reading(level, now)
  local slot, spec = level.slot, level.spec
  if not slot then return max(spec.limit - level.cost, 0), NEVER end
  local state = slot.accounts and state_for(slot, spec, now) or slot.algorithm.fresh()
  return slot.algorithm.reading(state, spec, now)
end

-- Charges a level; returns when, never before what was charged to the same key, and its reading.
local function charge(level, now, holder)
  local slot, spec = level.slot, level.spec
  if not slot then return now, reading(level, now) end
  changing = true
  if slot.accounts then
    open(slot, spec, now)
    close_what_is_over(slot, spec, now)
    slot.charged = max(slot.charged, now)
  else
    slot.accounts = { { spec = spec, state = slot.algorithm.fresh() } }
    slot.born, slot.charged = now, now
  end
  for _, account in ipairs(slot.accounts) do
    slot.algorithm.charge(account.state, account.spec, now, level.cost, holder)
  end
  local available, reset = reading(level, now)
  settle_slot(slot)
  return slot.charged, available, reset
end

-- A refusal at a new pace is remembered, or the old pace would pay off what it waits for.
local function remember(level, now)
  local slot = level.slot
  if slot and slot.accounts and not own_account(slot, level.spec) then
    changing = true
    open(slot, level.spec, now)
    settle_slot(slot)
  end
end

local function use(key, kind)
  local slot = slot_of(key, kind)
  used[#used + 1] = slot
  return slot
end

local function decide(ask, cursor, now)
  local charges, count, holder, at = unpack_from('<BBc8', ask, 3)
  local levels = {}
  for index = 1, count do
    local kind, enforced, cost, next = unpack_from('<BBI8', ask, at)
    local level = { enforced = enforced == 1, cost = cost }
    level.spec, at = read_spec(kind, ask, next)
    if kind ~= CEILING then
      level.slot = use(KEYS[cursor], kind)
      cursor = cursor + 1
    end
    levels[index] = level
  end
  local commits = charges == 1
  for _, level in ipairs(levels) do
    level.wait = evaluate(level, now)
    if level.wait and level.enforced then commits = false end
  end
  local reply = { pack('<BI8', 0, now) }
  for index, level in ipairs(levels) do
    local wait = level.wait
    if commits and not wait and level.cost > 0 then
      reply[index + 1] = pack('<Bi8I8I8i8', 1, 0, charge(level, now, holder))
    else
      if wait then remember(level, now) end
      reply[index + 1] = pack('<Bi8I8I8i8', wait and 2 or 0, wait or 0, 0, reading(level, now))
    end
  end
  return table.concat(reply)
end

local REFUND, SURCHARGE, RELEASE, RENEW, RESET = 1, 2, 3, 4, 5

-- Whether it found what it was to change.
local function amend(one, now)
  local slot, spec, change = one.slot, one.spec, one.change
  if not slot or not slot.accounts then return false end
  changing = true
  local found = true
  if change == RESET then
    slot.accounts, slot.changed = nil, true
    return true
  elseif change == REFUND or change == SURCHARGE then
    if one.charged_at < slot.born then return false end
    local act = change == REFUND and slot.algorithm.refund or slot.algorithm.surcharge
    for _, account in ipairs(slot.accounts) do
      local same = slot.algorithm.same_pace(account.spec, spec)
      act(account.state, same and spec or account.spec, now, one.charged_at, one.amount)
    end
  elseif slot.kind ~= PLACES or (change ~= RELEASE and change ~= RENEW) then
    return false
  else
    local state = slot.accounts[1].state
    found = slot.algorithm.renew(state, spec, now, one.holder)
    -- A place whose lease has run out is no longer held, though still listed.
    if change == RELEASE then found = slot.algorithm.release(state, one.holder) and found end
  end
  settle_slot(slot)
  return found
end

local function amend_all(ask, cursor, now)
  local count, at = unpack_from('<B', ask, 3)
  local amendments = {}
  for index = 1, count do
    local kind, change, amount, charged_at, holder, next = unpack_from('<BBI8I8c8', ask, at)
    local one = { change = change, amount = amount, charged_at = charged_at, holder = holder }
    one.spec, at = read_spec(kind, ask, next)
    if kind ~= CEILING then
      one.slot = use(KEYS[cursor], kind)
      cursor = cursor + 1
    end
    amendments[index] = one
  end
  local reply = { pack('<BI8', 0, now) }
  for index, one in ipairs(amendments) do
    reply[index + 1] = amend(one, now) and '\1' or '\0'
  end
  return table.concat(reply)
end

---------------------------------------------------------------------------------------------------
-- The batch

local now, spare_ms
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now, spare_ms = time[1] * 1000000 + time[2], MARGIN_MS
else
  -- A test's clock stands still while the server's goes on: no key may go by that.
  now, spare_ms = unpack_from('<I8', ARGV[1]), 3600000
end

local replies, users, cursor = {}, {}, 1
for index = 2, #ARGV do
  local ask = ARGV[index]
  local kind, keys = byte(ask, 1, 2)
  used, changing = {}, false
  local done, reply = pcall(kind == 1 and decide or amend_all, ask, cursor, now)
  if not done then
    if changing then
      -- What it had changed when it failed is nobody's to build on.
      for _, slot in ipairs(used) do
        slot.changed, slot.broken = true, tostring(reply)
      end
    end
    reply = '\1' .. tostring(reply)
  end
  replies[index - 1], users[index - 1] = reply, used
  cursor = cursor + (keys or 0)
end

local failed = false
for _, slot in pairs(slots) do
  if slot.changed and not slot.broken then write(slot, now, spare_ms) end
  failed = failed or (slot.changed and slot.broken)
end
if failed then
  for index, own in ipairs(users) do
    for _, slot in ipairs(own) do
      if slot.changed and slot.broken then replies[index] = '\1' .. slot.broken end
    end
  end
end
return replies
