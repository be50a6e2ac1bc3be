-- Asks that nearly all are: to decide buckets and fixed windows, each on a key of its own whose value
-- is of a short form, or none. Straight on, with nothing made but the values and the reply.

-- Of the levels of the ask at work, so that all are charged or none.
local quick_values, quick_ends = {}, {}

-- Decides an ask whose keys begin at `first`: the reply; nil if it takes the machinery, or false if
-- a level refuses what should be charged, both with nothing done.
local function try(ask, first, count, commits)
  local reply, at = nil, 13
  for index = 1, count do
    local key = KEYS[first]
    local value = staged[key]
    if value == nil then value = stored[first] end
    if slots[key] then return nil end
    local kind, enforced = byte(ask, at, at + 1)
    local cost, limit, fits, wait, charged, left, ends, saved
    if kind == BUCKET then
      local rate, period, common, age, owing, remainder, owed, low
      cost, rate, period, common, limit, at = unpack_from('<I8I8I8I8I8', ask, at + 2)
      if value then
        local held_rate, held_period, held_common, held_burst
        charged, age, owing, held_rate, held_period, held_common, held_burst, remainder, owed, low =
          read_bucket(value)
        if held_rate ~= rate or held_period ~= period or held_common ~= common
          or held_burst ~= limit then
          return nil
        end
        if owed > 2 * limit then owed = 2 * limit end
        if remainder >= period then remainder = 0 end
        if now > charged then
          local gone = now - charged
          charged, age, owing = now, age + gone, owing + gone
          local refilled = gone * rate + remainder
          if refilled > MAX then return nil end
          remainder = refilled % period
          refilled = (refilled - remainder) / period
          owed = refilled < owed and owed - refilled or 0
        end
        if owed == 0 then remainder = 0 end
      else
        charged, age, owing, remainder, owed, low = now, 0, 0, 0, 0, false
      end
      fits = owed + cost <= limit
      if fits then
        if commits and cost > 0 then
          if owed == 0 then
            owing, low = 0, false
          else
            local least = remainder > 0 and owed - 1 or owed
            if not low or least < low then low = least end
          end
          owed = owed + cost
          saved = write_bucket(
            charged, age, owing, rate, period, common, limit, remainder, owed, low)
          if not saved then return nil end
        end
      elseif cost > limit or rate == 0 then
        wait = NEVER
      else
        local due = (owed - (limit - cost)) * period - remainder
        if due > MAX then return nil end
        local rest = due % rate
        wait = charged + (due - rest) / rate + (rest > 0 and 1 or 0) - now
      end
      left = limit - owed
      if owed == 0 then
        ends = now
      elseif rate == 0 then
        return nil
      else
        local due = owed * period - remainder
        if due > MAX then return nil end
        local rest = due % rate
        ends = charged + (due - rest) / rate + (rest > 0 and 1 or 0)
      end
    else
      local window, age, used
      cost, limit, window, at = unpack_from('<I8I8I8', ask, at + 2)
      if value then
        local held, _
        charged, age, _, held, used = read_window(value)
        if held ~= window then return nil end
        if now > charged then
          if now - now % window > charged then used = 0 end
          charged, age = now, age + now - charged
        end
      else
        charged, age, used = now, 0, 0
      end
      fits, ends = used + cost <= limit, charged - charged % window + window
      if not fits then
        wait = cost > limit and NEVER or ends - now
      elseif commits and cost > 0 then
        used = used + cost
        saved = write_window(charged, age, limit, window, used)
        if not saved then return nil end
      end
      left = limit - used
    end
    -- What is later than the script's numbers go is left to the machinery.
    if ends > MAX then return nil end
    if commits and not fits and enforced == 1 then return false end
    quick_values[index], quick_ends[index] = saved or false, ends
    if ends < now then ends = now end
    local told = pack('<BI8Bi8I8I8i8', 0, now, saved and 1 or fits and 0 or 2, wait or 0,
      saved and charged or 0, left > 0 and left or 0, ends - now)
    -- The time stands only before the first.
    reply = reply and reply .. sub(told, 10) or told
    first = first + 1
  end
  first = first - count
  for index = 1, commits and count or 0 do
    local saved = quick_values[index]
    if saved then
      local key, ends = KEYS[first], quick_ends[index]
      if ends < now then ends = now end
      staged[key], expires[key] = saved, format('%d', (ends + 999) / 1000 + late_ms)
    end
    first = first + 1
  end
  return reply
end

local function quick(ask, first)
  local charges, count = byte(ask, 3, 4)
  local reply = try(ask, first, count, charges == 1)
  if reply == false then reply = try(ask, first, count, false) end
  return reply
end
