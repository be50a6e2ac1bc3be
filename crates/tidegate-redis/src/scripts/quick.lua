-- Asks as nearly all are: to decide buckets and fixed windows, each on a key of its own whose value
-- is of a short form, or none. They are decided straight on, one after the other, up to the first
-- that takes the machinery. Nothing is left of an ask before all of it is decided.
--
-- A key is read once, when it is first met, and written once, in the end. There are no functions
-- here, which would have to be called.

while at <= last do
  local index = codes[at]
  local pattern = patterns[index]
  if not pattern then
    if index == 0 then break end
    local ask, from = ARGV[2 + index], 13
    local _, levels, charges = byte(ask, 1, 3)
    pattern = { charges = charges == 1, levels = levels, slow = false }
    patterns[index] = pattern
    for level = 1, levels do
      local kind, enforced, begins = byte(ask, from), byte(ask, from + 1), from + 10
      local cost, rate, period, common, limit = nil, 1, nil, 1000000, nil
      if kind == BUCKET then
        cost, rate, period, common, limit, from = unpack_from('<I8I8I8I8I8', ask, from + 2)
      else
        cost, limit, period, from = unpack_from('<I8I8I8', ask, from + 2)
      end
      local units, room = common / 1000000, limit / 1000000
      local span, sound = limit * period / rate, units % 1 == 0 and room % 1 == 0
      if kind == BUCKET then
        -- What is owed, times the period, must be exact, and there must be room for all in a value.
        sound = sound and rate > 0 and rate < 16777216 and period < 16777216 and units < 65536
          and room < 16777216 and limit * period <= MAX
      else
        units, span = room, period
        sound = sound and room < 4294967296 and limit < NO_WIDE_LOW and period % 1000 == 0
          and period < 4294967296000
      end
      if not sound or now + span > MAX then pattern.slow = true end
      local part = span / 32
      pattern[level] = {
        kind = kind, enforced = enforced == 1, cost = cost, rate = rate, period = period,
        limit = limit, units = units, room = room, span = span, spec = sub(ask, begins, from - 1),
        tight = room == rate * units and units < 256 and rate < 65536 and period < 65536,
        -- Keys last so much longer at the most: a 32nd of what it takes to refill a bucket.
        quantum = kind == BUCKET and part > 1000000 and part - part % 1 or 1000000,
      }
    end
  end
  if pattern.slow then break end

  local levels, commits, slow = pattern.levels, pattern.charges, false
  for level = 1, levels do
    local shape, place = pattern[level], codes[at + level]
    local state = held[place]
    if not state then
      local value, period = stored[place], shape.period
      local charged, age, debt, rest, owing, low, ends = now, 0, 0, 0, 0, false, false
      if slots[KEYS[place]] then
        slow = true
        break
      elseif not value then
        -- A key that nobody has used.
      elseif shape.kind == BUCKET then
        local form, rate, held_period, units, room
        if #value == 28 then
          form, charged, age, rate, held_period, units, rest, debt, low =
            unpack_from(TIGHT_FORM, value)
          room = rate * units
          if form == TIGHT or form == TIGHT + ROUNDED then
            owing = age
          elseif form ~= TIGHT_NEW and form ~= TIGHT_NEW + ROUNDED then
            rate = nil
          end
          if low == NO_LOW then low = false end
        elseif #value == 44 then
          form, charged, age, owing, rate, held_period, units, room, rest, debt, low =
            unpack_from(WIDE_FORM, value)
          if form ~= WIDE and form ~= WIDE + ROUNDED then rate = nil end
          if low == NO_WIDE_LOW then low = false end
        end
        if rate ~= shape.rate or held_period ~= period or units ~= shape.units
          or room ~= shape.room then
          slow = true
          break
        end
        if debt > 2 * shape.limit then debt = 2 * shape.limit end
        if rest >= period then rest = 0 end
        if now > charged then
          local gone = now - charged
          local refilled = gone * rate + rest
          if refilled > MAX then
            slow = true
            break
          end
          charged, age, owing = now, age + gone, owing + gone
          rest = refilled % period
          refilled = (refilled - rest) / period
          debt = refilled < debt and debt - refilled or 0
        end
        if debt == 0 then
          rest = 0
        elseif form > ROUNDED + 64 then
          local due = debt * period - rest
          local over = due % rate
          ends = charged + (due - over) / rate + (over > 0 and 1 or 0)
        end
      else
        local form, ms, _
        if #value == 27 then
          form, charged, age, _, ms, debt = unpack_from(WINDOW_FORM, value)
        end
        if (form ~= WINDOW and form ~= WINDOW + ROUNDED) or ms * 1000 ~= period then
          slow = true
          break
        end
        if now > charged then
          if now - now % period > charged then debt = 0 end
          charged, age = now, age + now - charged
        end
        if debt > 0 and form > ROUNDED + 64 then ends = charged - charged % period + period end
      end
      if age >= AGE_MAX or charged + shape.span > MAX then
        slow = true
        break
      end
      if ends then ends = ends - ends % shape.quantum + shape.quantum end
      state = { debt, rest, charged, age, owing, low, ends, shape, false }
      held[place] = state
    elseif state[SHAPE] ~= shape and state[SHAPE].spec ~= shape.spec then
      slow = true
      break
    end
    local cost = shape.cost
    if state[DEBT] + cost > shape.limit then
      told[n + level] = DENIED
      if shape.enforced then commits = false end
    else
      told[n + level] = cost > 0 and CHARGED or LOOKED
    end
  end
  if slow then break end

  for level = 1, levels do
    if told[n + level] == CHARGED then
      if commits then
        local state, cost = held[codes[at + level]], pattern[level].cost
        local debt, low = state[DEBT], state[LOW]
        if debt == 0 then
          state[OWING], state[LOW] = 0, false
        else
          local least = state[REST] > 0 and debt - 1 or debt
          if not low or least < low then state[LOW] = least end
        end
        state[DEBT], state[CHANGED] = debt + cost, true
      else
        told[n + level] = LOOKED
      end
    end
  end
  n, at = n + levels, at + levels + 1
end
