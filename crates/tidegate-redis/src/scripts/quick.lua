-- Asks as nearly all are: to decide buckets and fixed windows, each on a key of its own whose value
-- is of a short form, or none. They are decided straight on, one after the other, up to the first
-- that takes the machinery. Nothing is left of an ask before all of it is decided.
--
-- A key is read once, when it is first met, and written once, in the end. There are no functions
-- here, which would have to be called.

-- Whether no key is the machinery's; its places come from those alone.
local clean, levels_at_work = not next(slots), {}

while at <= last do
  local index = codes[at]
  local pattern = patterns[index]
  if pattern == nil then
    if index == 0 then break end
    local ask, from, sound = ARGV[2 + index], 13, true
    local _, levels, charges = byte(ask, 1, 3)
    pattern = { charges = charges == 1, levels = levels }
    for level = 1, levels do
      local kind, enforced, begins = byte(ask, from), byte(ask, from + 1), from + 10
      local cost, rate, period, common, limit = nil, 1, nil, 1000000, nil
      if kind == BUCKET then
        cost, rate, period, common, limit, from = unpack_from('<I8I8I8I8I8', ask, from + 2)
      else
        cost, limit, period, from = unpack_from('<I8I8I8', ask, from + 2)
      end
      local units, room = common / 1000000, limit / 1000000
      local span, pace = period, false
      sound = sound and units % 1 == 0 and room % 1 == 0
      if kind == BUCKET then
        -- What is owed, times the period, must be exact, and there must be room for all in a value.
        span = limit * period / rate
        sound = sound and rate > 0 and rate < 16777216 and period < 16777216 and units < 65536
          and room < 16777216 and limit * period <= MAX
        if room == rate * units and units < 256 and rate < 65536 and period < 65536 then
          pace = rate + period * 65536 + units * 4294967296
        end
      else
        sound = sound and room < 4294967296 and limit < NO_WIDE_LOW and period % 1000 == 0
          and period < 4294967296000
      end
      sound = sound and now + span <= MAX
      local part = span / 32
      pattern[level] = {
        kind = kind, enforced = enforced == 1, cost = cost, rate = rate, period = period,
        limit = limit, room = room, span = span, spec = sub(ask, begins, from - 1),
        -- What may be spent before, and what becomes of the level then.
        most = limit - cost, becomes = cost > 0 and CHARGED or LOOKED,
        pace = pace, wide_pace = rate + period * 16777216, size = units + room * 65536,
        -- Keys last so much longer at the most: a 32nd of what it takes to refill a bucket.
        quantum = kind == BUCKET and part > 1000000 and part - part % 1 or 1000000,
      }
    end
    pattern = sound and pattern
    patterns[index] = pattern
  end
  if not pattern then break end

  local levels, commits, slow = pattern.levels, pattern.charges, false
  for level = 1, levels do
    local shape, place = pattern[level], codes[at + level]
    local state = held[place]
    if not state then
      local value, period = stored[place], shape.period
      -- The end is that of what is stored, where the key goes by it.
      local charged, age, debt, rest, owing, low, ends = now, 0, 0, 0, 0, false, false
      if not clean and slots[KEYS[place]] then
        slow = true
        break
      elseif not value then
        -- A key that nobody has used.
      elseif shape.kind == BUCKET then
        local form, rate, pace, size, rounded = nil, shape.rate, nil, nil, false
        if #value == 28 then
          form, charged, age, pace, rest, debt, low = unpack_from(TIGHT_PACED, value)
          if form > 96 then form, rounded = form - ROUNDED, true end
          if form == TIGHT then owing = age elseif form ~= TIGHT_NEW then pace = nil end
          if pace ~= shape.pace then
            slow = true
            break
          end
          if low == NO_LOW then low = false end
        else
          if #value == 44 then
            form, charged, age, owing, pace, size, rest, debt, low =
              unpack_from(WIDE_PACED, value)
            rounded = form == WIDE + ROUNDED
          end
          if pace ~= shape.wide_pace or size ~= shape.size or not (rounded or form == WIDE) then
            slow = true
            break
          end
          if low == NO_WIDE_LOW then low = false end
        end
        if rest >= period then rest = 0 end
        if rounded then
          local due = debt * period - rest
          local over = due % rate
          ends = charged + (due - over) / rate + (over > 0 and 1 or 0)
        end
        if now > charged then
          local gone = now - charged
          local refilled = gone * rate + rest
          if refilled > MAX then
            slow = true
            break
          end
          -- A debt counts at most twice the burst, which is cut before the refill.
          if debt > shape.limit and debt > 2 * shape.limit then debt = 2 * shape.limit end
          charged, age, owing = now, age + gone, owing + gone
          rest = refilled % period
          refilled = (refilled - rest) / period
          debt = refilled < debt and debt - refilled or 0
        end
        if debt == 0 then rest = 0 end
      else
        local form, ms, _
        if #value == 27 then
          form, charged, age, _, ms, debt = unpack_from(WINDOW_FORM, value)
        end
        if (form ~= WINDOW and form ~= WINDOW + ROUNDED) or ms * 1000 ~= period then
          slow = true
          break
        end
        if form ~= WINDOW then ends = charged - charged % period + period end
        if now > charged then
          if now - now % period > charged then debt = 0 end
          charged, age = now, age + now - charged
        end
      end
      if age >= AGE_MAX or charged + shape.span > MAX then
        slow = true
        break
      end
      if ends then
        local quantum = shape.quantum
        ends = ends - ends % quantum + quantum
      end
      state = { debt, rest, charged, age, owing, low, ends, shape, false }
      held[place] = state
    elseif state[SHAPE] ~= shape and state[SHAPE].spec ~= shape.spec then
      slow = true
      break
    end
    levels_at_work[level] = state
    if state[DEBT] > shape.most then
      told[n + level] = DENIED
      if shape.enforced then commits = false end
    else
      told[n + level] = shape.becomes
    end
  end
  if slow then break end

  for level = 1, levels do
    if told[n + level] == CHARGED then
      if commits then
        local state = levels_at_work[level]
        local debt, low = state[DEBT], state[LOW]
        if debt == 0 then
          state[OWING], state[LOW] = 0, false
        elseif not low or debt <= low then
          local least = state[REST] > 0 and debt - 1 or debt
          if not low or least < low then state[LOW] = least end
        end
        state[DEBT], state[CHANGED] = debt + pattern[level].cost, true
      else
        told[n + level] = LOOKED
      end
    end
  end
  n, at = n + levels, at + levels + 1
end
