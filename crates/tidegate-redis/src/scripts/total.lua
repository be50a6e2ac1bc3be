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
    owed = function(s) return s.used end,
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
    read_spec = function(command, at)
      local limit, next = unpack_from('<I8', command, at)
      return { limit = limit }, next
    end,
  }
end
