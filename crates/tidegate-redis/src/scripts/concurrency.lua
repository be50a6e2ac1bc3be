-- Holders are 64-bit numbers, here strings of 8 bytes. They are sorted by the expiry of their leases, and
-- by arrival where that is the same.
local function concurrency()
  local function insert(s, holder)
    local position = #s.holders + 1
    while position > 1 and s.holders[position - 1].expires > holder.expires do
      position = position - 1
    end
    table.insert(s.holders, position, holder)
  end

  -- How much is held, and the position of the first holder whose lease has not expired.
  local function alive(s, now)
    local held, first = 0, #s.holders + 1
    for position = #s.holders, 1, -1 do
      if s.holders[position].expires <= now then break end
      held, first = held + s.holders[position].cost, position
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
      for position = first, #s.holders do
        held, free_at = held - s.holders[position].cost, s.holders[position].expires
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
      for position, holder in ipairs(s.holders) do
        if holder.id == id and holder.expires > now then
          table.remove(s.holders, position)
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
    save = function(out, n, spec, s, entry)
      local list = {}
      for position, holder in ipairs(s.holders) do
        list[position] = { holder.id, put(holder.cost), holder.expires - entry.charged }
      end
      out[n + 1], out[n + 2], out[n + 3] = put(spec.limit), put(spec.window), list
      return n + 3
    end,
    load = function(values, n, entry)
      local holders = {}
      for position, held in ipairs(values[n + 3]) do
        local left = held[3]
        if not (left >= -MAX and left <= MAX) then unreadable() end
        holders[position] = { id = held[1], cost = get(held[2]), expires = left + entry.charged }
      end
      return { limit = get(values[n + 1]), window = get(values[n + 2]) },
        { holders = holders }, n + 3
    end,
  }
end
