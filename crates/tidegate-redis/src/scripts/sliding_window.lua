-- The newest charge stands by itself. The older ones are a log: a string of pairs of the time since the
-- pair before and the cost. It is read from the front only as far as needed, cut there, and appended to.
-- `base` is the time from which the first pair counts, `last` the time of the last pair.
local function sliding_window()
  local function log_entry(s, offset)
    local next, delta, cost = msgunpack(s.log, 2, offset)
    return next, delta, get(cost)
  end

  -- What is spent in the window, and where its log begins: offset, base and the number of pairs; -1 if
  -- even the newest charge is out of the window.
  local function within(s, spec, now)
    local gone_until = max(now, s.newest) - spec.window
    if s.newest <= gone_until then return 0, 0, s.last, -1 end
    local spent, offset, base, count = s.total, 0, s.base, s.count
    while count > 0 do
      local next, delta, cost = log_entry(s, offset)
      if base + delta > gone_until then break end
      spent, base, offset, count = spent - cost, base + delta, next, count - 1
    end
    return spent, offset, base, count
  end

  -- Replaces the pairs between two offsets; -1 is the end.
  local function splice(s, from, to, pairs)
    s.log = sub(s.log, 1, from) .. pairs .. (to < 0 and '' or sub(s.log, to + 1))
  end

  -- The newest charge is gone: the last pair of the log takes its place.
  local function step_back(s)
    if s.count == 0 then
      s.newest, s.newest_cost = 0, 0
      return
    end
    local offset, at, before, cost, start = 0, s.base, s.base, 0, 0
    for _ = 1, s.count do
      local next, delta, found = log_entry(s, offset)
      start, before, at, cost, offset = offset, at, at + delta, found, next
    end
    splice(s, start, -1, '')
    s.count, s.last, s.newest, s.newest_cost = s.count - 1, before, at, cost
  end

  -- Changes the pair that holds a charge, its own or a later one that it was merged into, by `by(cost)`.
  -- A charge that is older than the window is not changed.
  local function change(s, spec, now, charged_at, by)
    if s.newest_cost == 0 or s.newest < charged_at
      or charged_at + spec.window <= max(now, s.newest) then
      return
    end
    local offset, before, position = 0, s.base, 1
    while charged_at <= s.last and position <= s.count do
      local next, delta, cost = log_entry(s, offset)
      if before + delta >= charged_at then
        local added = by(cost)
        s.total = s.total + added
        if cost + added > 0 then
          splice(s, offset, next, msgpack(delta, put(cost + added)))
        elseif position < s.count then
          local after, further, following = log_entry(s, next)
          splice(s, offset, after, msgpack(delta + further, put(following)))
          s.count = s.count - 1
        else
          splice(s, offset, -1, '')
          s.count, s.last = s.count - 1, before
        end
        return
      end
      before, offset, position = before + delta, next, position + 1
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
        local next, delta, found = log_entry(s, offset)
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
    owed = function(s, spec, now) return (within(s, spec, now)) end,
    reading = function(s, spec, now)
      return max(spec.limit - (within(s, spec, now)), 0), max(ends(s, spec) - now, 0)
    end,
    ends = ends,
    same_pace = function(one, other) return one.window == other.window end,
    save = function(out, n, spec, s, entry)
      out[n + 1], out[n + 2], out[n + 3] = put(spec.limit), put(spec.window), put(s.total)
      out[n + 4], out[n + 5], out[n + 6] = s.newest - entry.charged, put(s.newest_cost), s.count
      out[n + 7], out[n + 8], out[n + 9] = s.newest - s.last, s.last - s.base, s.log
      return n + 9
    end,
    load = function(values, n, entry)
      local newest = values[n + 4] + entry.charged
      local last = newest - values[n + 7]
      return { limit = get(values[n + 1]), window = get(values[n + 2]) }, {
        total = get(values[n + 3]), newest = newest, newest_cost = get(values[n + 5]),
        count = values[n + 6], last = last, base = last - values[n + 8], log = values[n + 9],
      }, n + 9
    end,
  }
end
