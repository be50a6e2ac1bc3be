-- Asks as nearly all are: to decide buckets and fixed windows, each on a key of its own whose value
-- is of a short form, or none. They are decided straight on, one after the other, up to the first
-- that takes the machinery. Nothing is left of an ask before all of it is decided.
--
-- There are no functions here, which would have to be made for every call.

while index <= #ARGV do
  local ask = ARGV[index]
  local act, levels, charges = byte(ask, 1, 3)
  if act ~= PLAIN then break end
  local commits, reply, level, place, at = charges == 1, nil, 1, cursor, 13
  if not replied[levels] then replied[levels] = '<BI8' .. rep('Bi8I8I8i8', levels) end
  while level <= levels do
    local key = KEYS[place]
    if slots[key] then
      reply = nil
      break
    end
    local value = staged[key]
    if value == nil then value = stored[place] end
    -- The numbers of an ask are often those of the one before.
    if ask ~= same then
      kind, enforced = byte(ask, at, at + 1)
      if kind == BUCKET then
        cost, rate, period, common, limit, at = unpack_from('<I8I8I8I8I8', ask, at + 2)
      else
        cost, limit, period, at = unpack_from('<I8I8I8', ask, at + 2)
      end
      same = levels == 1 and ask
    end

    -- When it was charged, how long before that it was born, what is left of the limit, until when
    -- something is spent of it, how long to wait, and the value if it is charged now. Without an
    -- end, the ask takes the machinery.
    local charged, age, left, ends, wait, saved
    if kind == BUCKET then
      local owing, remainder, owed, low = 0, 0, 0, false
      if not value then
        charged, age = now, 0
      else
        local form, held_rate, held_period, units, room
        if #value == 28 then
          form, charged, age, held_rate, held_period, units, remainder, owed, low =
            unpack_from(TIGHT_FORM, value)
          room = held_rate * units
          if form == TIGHT then owing = age elseif form == TIGHT_NEW then form = TIGHT end
          if low == NO_LOW then low = false end
        elseif #value == 44 then
          form, charged, age, owing, held_rate, held_period, units, room, remainder, owed, low =
            unpack_from(WIDE_FORM, value)
          if low == NO_WIDE_LOW then low = false end
        end
        if held_rate ~= rate or held_period ~= period or units * 1000000 ~= common
          or room * 1000000 ~= limit or (form ~= TIGHT and form ~= WIDE) then
          reply = nil
          break
        end
        if owed > 2 * limit then owed = 2 * limit end
        if remainder >= period then remainder = 0 end
        if now > charged then
          local gone = now - charged
          local refilled = gone * rate + remainder
          charged, age, owing = now, age + gone, owing + gone
          if refilled > MAX then
            reply = nil
            break
          end
          remainder = refilled % period
          refilled = (refilled - remainder) / period
          owed = refilled < owed and owed - refilled or 0
        end
        if owed == 0 then remainder = 0 end
      end
      if owed + cost > limit then
        if cost > limit then
          wait = NEVER
        else
          local due = (owed - (limit - cost)) * period - remainder
          local rest = due % rate
          wait = charged - now + (due - rest) / rate + (rest > 0 and 1 or 0)
        end
      elseif commits and cost > 0 then
        if owed == 0 then
          owing, low = 0, false
        else
          local least = remainder > 0 and owed - 1 or owed
          if not low or least < low then low = least end
        end
        owed = owed + cost
        local units, room = common / 1000000, limit / 1000000
        if room == rate * units and units < 256 and rate < 65536 and period < 65536
          and (owing == age or owing == 0) and age < AGE_MAX and units % 1 == 0
          and owed < NO_LOW then
          saved = pack(TIGHT_FORM, owing == age and TIGHT or TIGHT_NEW, charged, age, rate, period,
            units, remainder, owed, low or NO_LOW)
        elseif rate < 16777216 and period < 16777216 and units < 65536 and room < 16777216
          and age < AGE_MAX and units % 1 == 0 and room % 1 == 0 and owed < NO_WIDE_LOW then
          saved = pack(WIDE_FORM, WIDE, charged, age, owing, rate, period, units, room, remainder,
            owed, low or NO_WIDE_LOW)
        else
          reply = nil
          break
        end
      end
      left, ends = limit - owed, now
      if owed > 0 then
        local due = owed * period - remainder
        local rest = due % rate
        ends = due <= MAX and rate > 0 and charged + (due - rest) / rate + (rest > 0 and 1 or 0)
      end
    else
      local used = 0
      if not value then
        charged, age = now, 0
      else
        local form, ms, _
        if #value == 27 then
          form, charged, age, _, ms, used = unpack_from(WINDOW_FORM, value)
        end
        if form ~= WINDOW or ms * 1000 ~= period then
          reply = nil
          break
        end
        if now > charged then
          if now - now % period > charged then used = 0 end
          charged, age = now, age + now - charged
        end
      end
      ends = charged - charged % period + period
      if used + cost > limit then
        wait = cost > limit and NEVER or ends - now
      elseif commits and cost > 0 then
        used = used + cost
        local units, ms = limit / 1000000, period / 1000
        if units >= 4294967296 or ms >= 4294967296 or units % 1 > 0 or ms % 1 > 0
          or age >= AGE_MAX or used > NO_WIDE_LOW then
          reply = nil
          break
        end
        saved = pack(WINDOW_FORM, WINDOW, charged, age, units, ms, used)
      end
      left = limit - used
    end
    -- What is later than numbers go is for the machinery too.
    if not ends or ends > MAX then
      reply = nil
      break
    end

    if wait and commits and enforced == 1 then
      -- Nothing is charged: from the first level on again, only looking.
      commits, reply, level, place, at, same = false, nil, 1, cursor, 13, nil
    else
      local code = saved and 1 or wait and 2 or 0
      charged, left = saved and charged or 0, left > 0 and left or 0
      local reset = ends > now and ends - now or 0
      if levels == 1 then
        reply = pack(replied[1], 0, now, code, wait or 0, charged, left, reset)
      else
        local n = 5 * level
        told[n - 4], told[n - 3], told[n - 2], told[n - 1], told[n] =
          code, wait or 0, charged, left, reset
        reply = level == levels and pack(replied[level], 0, now, unpack(told, 1, n))
      end
      if levels > 1 then
        values[level], ending[level] = saved, ends
      elseif saved then
        staged[key], expires[key] = saved, ends
      end
      level, place = level + 1, place + 1
    end
  end
  if not reply then
    same = nil
    break
  end
  for level = 1, levels > 1 and levels or 0 do
    local saved, key = values[level], KEYS[cursor + level - 1]
    if saved then staged[key], expires[key] = saved, ending[level] end
  end
  replies[index - 1] = reply
  index, cursor = index + 1, cursor + levels
end
