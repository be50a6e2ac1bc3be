-- Asks as nearly all are: to decide buckets and fixed windows, each on a key of its own whose value
-- is of a short form, or none. They are decided straight on, one after the other, up to the first
-- that takes the machinery. Nothing is left of an ask before all of it is decided.
--
-- A key is read once, when it is first met, and written once, in the end. There are no functions
-- here, which would have to be called; what counts is how few steps Lua makes for a key and an ask.
--
-- What a bucket is owed is kept as `due`: the microseconds until it is repaid, times the rate. The
-- passing of time and a charge are then one subtraction and one addition.

-- Whether no key is the machinery's.
local clean, levels_at_work = not next(slots) and not next(sealed), {}

-- The pattern whose common levels, those on whose keys all its asks agree, are not looked at for
-- each ask: how many more asks fit into all of them, of how many. What those were charged is added
-- when somebody else looks.
local ahead, fitting, fitted = nil, 0, 0

while at <= last do
  local index = codes[at]
  local pattern = patterns[index]
  if pattern == nil then
    if index == 0 then break end
    local ask, from, sound = ARGV[2 + index], 13, true
    local _, levels, charges = byte(ask, 1, 3)
    local places, own, common = #ask - levels, 0, levels
    -- Simple ones charge all their levels, or say what became of each.
    pattern = { charges = charges == 1, levels = levels, own = 0 }
    pattern.simple = pattern.charges and levels > 0
    for level = 1, levels do
      local kind, enforced, begins = byte(ask, from), byte(ask, from + 1), from + 10
      local cost, rate, period, units, limit = nil, 1, 1, 1, nil
      local pace, wide_pace, size, span = 0, nil, nil, nil
      if kind == BUCKET then
        cost, rate, period, units, limit, from = unpack_from('<I8I8I8I8I8', ask, from + 2)
        units = units / 1000000
      else
        cost, limit, span, from = unpack_from('<I8I8I8', ask, from + 2)
      end
      local room = limit / 1000000
      sound = sound and units % 1 == 0 and room % 1 == 0
      if kind == BUCKET then
        -- What is owed, times the period, must be exact, and there must be room for all in a value.
        span = limit * period / rate
        sound = sound and rate > 0 and rate < 16777216 and period < 16777216 and units < 65536
          and room < 16777216 and 2 * limit * period <= MAX
        wide_pace, size = rate + period * 16777216, (units + room * 65536) * 256
        if room == rate * units and rate < 16384 and period < 65536 and units < 1024 then
          pace = (rate + period * 16384 + units * 1073741824) * 256
        end
      else
        sound = sound and room < 4294967296 and limit < NO_WIDE_LOW and span % 1000 == 0
          and span < 4294967296000
      end
      sound = sound and now + span <= MAX
      local part, place = span / 32, byte(ask, places + level)
      local shape = {
        kind = kind, level = level, place = place, enforced = enforced == 1, rate = rate,
        period = period, room = room, span = span, spec = sub(ask, begins, from - 1),
        -- What may be due before, what hardly ever is, and what a charge adds.
        most = (limit - cost) * period, excess = 2 * limit * period, step = cost * period,
        -- What values begin with beside their form; of a bucket without a tight one, 0.
        pace = pace, wide_pace = wide_pace, size = size,
        -- Keys last so much longer at the most: a 32nd of what it takes to refill a bucket.
        quantum = kind == BUCKET and part > 1000000 and part - part % 1 or 1000000,
      }
      if cost == 0 then pattern.simple = false end
      -- Own levels come first, in their order, and common ones behind them.
      if place == 0 then
        own = own + 1
        pattern[own] = shape
      else
        pattern[common], common = shape, common - 1
      end
    end
    pattern.own = own
    pattern = sound and pattern
    patterns[index] = pattern
  end
  if not pattern then break end

  local levels, own, fits, slow = pattern.levels, pattern.own, true, false
  if ahead then
    if ahead == pattern and fitting > 0 then
      levels = own
    else
      for level = ahead.own + 1, ahead.levels do
        local state = levels_at_work[level]
        state[DUE] = state[DUE] + (fitted - fitting) * ahead[level].step
      end
      ahead = nil
    end
  end
  for level = 1, levels do
    local shape, place = pattern[level], codes[at + level]
    if level > own then place = shape.place end
    local state = held[place]
    if not state then
      local value = stored[place]
      -- The end is that of what is stored, where the key goes by it.
      local head, charged, age, due, owing, low, ends = nil, now, 0, 0, 0, false, false
      if not clean and (sealed[place] or slots[KEYS[place]]) then
        slow = true
        break
      elseif not value then
        -- A key that nobody has used.
      elseif shape.kind == BUCKET then
        local pace
        if #value == 28 then
          head, charged, age, due, low = unpack_from(TIGHT_FORM, value)
          head = head - shape.pace
          if head == TIGHT_ROUNDED then
            owing, ends = age, true
          elseif head == TIGHT_NEW_ROUNDED then
            ends = true
          elseif head == TIGHT then
            owing = age
          elseif head ~= TIGHT_NEW then
            slow = true
            break
          end
          if low == NO_LOW then low = false end
        else
          if #value == 42 then
            head, charged, age, owing, pace, due, low = unpack_from(WIDE_FORM, value)
            head = head - shape.size
          end
          if head == WIDE_ROUNDED then
            ends = true
          elseif head ~= WIDE then
            slow = true
            break
          end
          if pace ~= shape.wide_pace then
            slow = true
            break
          end
          if low == NO_WIDE_LOW then low = false end
        end
        if due > shape.excess then
          slow = true
          break
        end
        local gone, rate, period = now - charged, shape.rate, shape.period
        if ends then ends = charged + due / rate end
        due, age, owing = due - gone * rate, age + gone, owing + gone
        if due <= 0 then
          due, owing, low = 0, 0, false
        else
          -- The low-water mark of a charge now.
          local least = (due - due % period) / period
          if not low or least < low then low = least end
        end
      else
        local span, ms, _ = shape.span, nil, nil
        if #value == 27 then
          head, charged, age, _, ms, due = unpack_from(WINDOW_FORM, value)
        end
        if (head ~= WINDOW and head ~= WINDOW + ROUNDED) or ms * 1000 ~= span then
          slow = true
          break
        end
        if head ~= WINDOW then ends = charged - charged % span + span end
        if now - now % span > charged then due = 0 end
        age = age + now - charged
      end
      -- A key whose time is ahead of the server's clock is none for here.
      if charged > now or age >= AGE_MAX then
        slow = true
        break
      end
      state = { due, false, age, owing, low, ends, shape }
      held[place] = state
    elseif state[SHAPE] ~= shape and state[SHAPE].spec ~= shape.spec then
      slow = true
      break
    end
    levels_at_work[level] = state
    if state[DUE] > shape.most then fits = false end
  end
  if slow then break end

  if fits and pattern.simple then
    for level = 1, levels do
      local state = levels_at_work[level]
      local due = state[DUE] + pattern[level].step
      if not state[FIRST] then state[FIRST] = due end
      state[DUE] = due
    end
    if ahead then
      fitting = fitting - 1
    elseif own < levels then
      fitting = MAX
      for level = own + 1, levels do
        local shape = pattern[level]
        local left, step = shape.most - levels_at_work[level][DUE], shape.step
        left = left < 0 and 0 or (left - left % step) / step + 1
        if left < fitting then fitting = left end
      end
      ahead, fitted = pattern, fitting
    end
    n, at = n + 1, at + own + 1
    told[n] = ALL
  elseif ahead then
    -- Once more, with all its levels.
    fitting, fitted = 0, fitted - fitting
  else
    local commits = pattern.charges
    for level = 1, levels do
      local shape = pattern[level]
      local becomes = shape.step > 0 and CHARGED or LOOKED
      if levels_at_work[level][DUE] > shape.most then
        becomes = DENIED
        if shape.enforced then commits = false end
      end
      told[n + shape.level] = becomes
    end
    for level = 1, levels do
      local shape, state = pattern[level], levels_at_work[level]
      if told[n + shape.level] ~= CHARGED then
        -- Nothing is charged to it.
      elseif commits then
        state[DUE] = state[DUE] + shape.step
        state[FIRST] = state[FIRST] or state[DUE]
      else
        told[n + shape.level] = LOOKED
      end
    end
    n, at = n + levels, at + own + 1
  end
end

if ahead then
  for level = ahead.own + 1, ahead.levels do
    local state = levels_at_work[level]
    state[DUE] = state[DUE] + (fitted - fitting) * ahead[level].step
  end
end
