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
    owed = function(s, spec, now) return used(s, (window(spec, max(now, s.at)))) end,
    reading = function(s, spec, now)
      local start, finish = window(spec, max(now, s.at))
      return max(spec.limit - used(s, start), 0), max(finish - now, 0)
    end,
    ends = function(s, spec)
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
  fixed.save = function(out, n, spec, s, entry)
    out[n + 1], out[n + 2] = put(spec.limit), put(spec.window)
    out[n + 3], out[n + 4] = s.at - entry.charged, put(s.used)
    return n + 4
  end
  fixed.load = function(values, n, entry)
    if values[n + 2] == 0 then unreadable() end
    return { limit = get(values[n + 1]), window = get(values[n + 2]) },
      { at = values[n + 3] + entry.charged, used = get(values[n + 4]) }, n + 4
  end
  return fixed
end

local function quota()
  local calendar = counted(function(spec, now)
    if now < spec.start then
      if now >= spec.previous then return spec.previous, spec.start end
      local length = max(spec.start - spec.previous, 1)
      local start = now - (now - spec.previous) % length
      return start, start + length
    end
    if now < spec.finish then return spec.start, spec.finish end
    if now < spec.next_finish then return spec.finish, spec.next_finish end
    local length = max(spec.next_finish - spec.finish, 1)
    local start = now - (now - spec.next_finish) % length
    return start, start + length
  end)
  calendar.same_pace = function(one, other) return one.unit == other.unit end
  calendar.read_spec = function(command, at)
    local limit, unit, previous, start, finish, next_finish, next =
      unpack_from('<I8I8I8I8I8I8', command, at)
    return {
      limit = limit, unit = unit, previous = previous, start = start, finish = finish,
      next_finish = next_finish,
    }, next
  end
  calendar.save = function(out, n, spec, s, entry)
    out[n + 1], out[n + 2], out[n + 3] = put(spec.limit), spec.unit, put(spec.previous)
    out[n + 4], out[n + 5], out[n + 6] = put(spec.start), put(spec.finish), put(spec.next_finish)
    out[n + 7], out[n + 8] = s.at - entry.charged, put(s.used)
    return n + 8
  end
  calendar.load = function(values, n, entry)
    return {
      limit = get(values[n + 1]), unit = values[n + 2], previous = get(values[n + 3]),
      start = get(values[n + 4]), finish = get(values[n + 5]), next_finish = get(values[n + 6]),
    }, { at = values[n + 7] + entry.charged, used = get(values[n + 8]) }, n + 8
  end
  return calendar
end
