local function token_bucket()
  -- The rate is `count` per `period` in lowest terms; both times `common` are what the policy says,
  -- and the unit of the remainder.
  local function settle(s, spec, now)
    local owed, at, most = s.owed, s.at, 2 * spec.burst
    if owed > most then owed = most end
    local to = now > at and now or at
    if owed == 0 then return 0, 0, to end
    local remainder, common = s.remainder, spec.common
    if remainder >= spec.period * common then remainder = 0 end
    if to == at then return owed, remainder, to end
    local finer = remainder % common
    local paid, period = (remainder - finer) / common, spec.period
    -- As in `muldiv`, which is a call.
    local refilled, left = (to - at) * spec.count + paid, nil
    if refilled <= MAX then
      left = refilled % period
      refilled = (refilled - left) / period
    else
      refilled, left = muldiv(to - at, spec.count, paid, period)
    end
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
    settle = settle,
    repaid_at = repaid_at,
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
      owed = owed + cost
      s.owed, s.remainder, s.at = owed < MAX and owed or MAX, remainder, at
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
    owed = function(s, spec, now) return (settle(s, spec, now)) end,
    reading = function(s, spec, now)
      local owed, remainder, at = settle(s, spec, now)
      if owed == 0 then return spec.burst, 0 end
      local full_at, left = repaid_at(remainder, at, spec, owed), spec.burst - owed
      return left > 0 and left or 0, full_at and (full_at > now and full_at - now or 0) or NEVER
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
    read_spec = function(command, at)
      local count, period, common, burst, next = unpack_from('<I8I8I8I8', command, at)
      return { count = count, period = period, common = common, burst = burst }, next
    end,
    save = function(out, n, spec, s, entry)
      out[n + 1], out[n + 2], out[n + 3] = put(spec.count), put(spec.period), put(spec.common)
      out[n + 4], out[n + 5], out[n + 6] = put(spec.burst), put(s.owed), put(s.remainder)
      out[n + 7], out[n + 8] = s.low and put(s.low), s.at - entry.charged
      out[n + 9] = s.since - entry.born
      return n + 9
    end,
    load = function(values, n, entry)
      local spec = {
        count = get(values[n + 1]), period = get(values[n + 2]),
        common = get(values[n + 3]), burst = get(values[n + 4]),
      }
      local low, at, since = values[n + 7], values[n + 8] + entry.charged, values[n + 9] + entry.born
      -- A refund may be later than the last charge, where the clock was set back since.
      if spec.period == 0 or spec.common == 0 or since < entry.born
        or since > max(at, entry.charged) then
        unreadable()
      end
      return spec, {
        owed = get(values[n + 5]), remainder = get(values[n + 6]), low = low and get(low),
        at = at, since = since,
      }, n + 9
    end,
  }
end
