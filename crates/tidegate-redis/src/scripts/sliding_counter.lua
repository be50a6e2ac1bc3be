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

  -- Changes the counter that holds a charge by `by(counter)`.
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
    owed = function(s, _, now)
      local start, current, previous = roll(s, now)
      return estimate(start, s.window, current, previous, now)
    end,
    reading = function(s, spec, now)
      local start, current, previous = roll(s, now)
      return max(spec.limit - estimate(start, s.window, current, previous, now), 0),
        max(empty_at(start, s.window, current, previous) - now, 0)
    end,
    ends = function(s) return empty_at(s.start, s.window, s.current, s.previous) end,
    same_pace = function(one, other) return one.window == other.window end,
    save = function(out, n, spec, s, entry)
      out[n + 1], out[n + 2], out[n + 3] = put(spec.limit), put(spec.window), put(s.window)
      out[n + 4], out[n + 5], out[n + 6] = s.start - entry.charged, put(s.current), put(s.previous)
      return n + 6
    end,
    load = function(values, n, entry)
      if values[n + 2] == 0 then unreadable() end
      return { limit = get(values[n + 1]), window = get(values[n + 2]) }, {
        window = get(values[n + 3]), start = values[n + 4] + entry.charged,
        current = get(values[n + 5]), previous = get(values[n + 6]),
      }, n + 6
    end,
  }
end
