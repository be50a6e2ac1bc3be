-- The fast path: plans of buckets and fixed windows, each on a key of its own whose value has a short form
-- or does not exist. They are decided one after the other, up to the first that needs the general path. A
-- command changes nothing before all of it is decided.
--
-- A key is read once, when it is first met, and written once, in the end. There are no functions, as each
-- call costs: what counts is how few steps Lua makes for a key and a command.
--
-- `due` is what a bucket is owed: the microseconds until it is repaid, times the rate. So the passing of
-- time is one subtraction, and a charge is one addition.

-- True if the general path has loaded no key.
local clean, levels_at_work = not next(entries) and not next(sealed), {}

-- The common levels of one pattern, on whose keys all its commands agree, are not checked for each
-- command: `fitting` more commands of `fitted` fit into all of them. Their charges are added up before
-- anything else reads those levels.
local ahead, fitting, fitted = nil, 0, 0

while at <= last do
  local index = codes[at]
  local pattern = patterns[index]
  if pattern == nil then
    if index == 0 then break end
    local command, from, sound = ARGV[2 + index], 13, true
    local _, levels, charges = byte(command, 1, 3)
    local key_indices, own, common = #command - levels, 0, levels
    -- A simple pattern charges all its levels, or has a status for each.
    pattern = { charges = charges == 1, levels = levels, own = 0 }
    pattern.simple = pattern.charges and levels > 0
    for level = 1, levels do
      local kind, enforced, begins = byte(command, from), byte(command, from + 1), from + 10
      local cost, rate, period, units, limit = nil, 1, 1, 1, nil
      local pace, wide_pace, size, span = 0, nil, nil, nil
      if kind == BUCKET then
        cost, rate, period, units, limit, from = unpack_from('<I8I8I8I8I8', command, from + 2)
        units = units / 1000000
      else
        cost, limit, span, from = unpack_from('<I8I8I8', command, from + 2)
      end
      local room = limit / 1000000
      sound = sound and units % 1 == 0 and room % 1 == 0
      if kind == BUCKET then
        -- What is owed times the period must be exact, and all fields must fit into a value.
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
      local part, key_index = span / 32, byte(command, key_indices + level)
      local shape = {
        kind = kind, level = level, key_index = key_index, enforced = enforced == 1, rate = rate,
        period = period, room = room, span = span, spec = sub(command, begins, from - 1),
        -- The most that may be due before a charge, a limit that is hardly ever exceeded, and what a
        -- charge adds.
        most = (limit - cost) * period, excess = 2 * limit * period, step = cost * period,
        -- What values begin with apart from their form; 0 for a bucket without a tight form.
        pace = pace, wide_pace = wide_pace, size = size,
        -- Expiries are rounded up to this: a 32nd of the time that refills the bucket.
        quantum = kind == BUCKET and part > 1000000 and part - part % 1 or 1000000,
      }
      if cost == 0 then pattern.simple = false end
      -- Own levels come first, in their order, and common ones behind them.
      if key_index == 0 then
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

  local levels, own, fits, needs_general = pattern.levels, pattern.own, true, false
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
    local shape, key_index = pattern[level], codes[at + level]
    if level > own then key_index = shape.key_index end
    local state = states[key_index]
    if not state then
      local value = stored[key_index]
      -- `ends` is the expiry of the stored value, where that is rounded.
      local head, charged, age, due, owing, low, ends = nil, now, 0, 0, 0, false, false
      if not clean and (sealed[key_index] or entries[KEYS[key_index]]) then
        needs_general = true
        break
      elseif not value then
        -- The key is new.
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
            needs_general = true
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
            needs_general = true
            break
          end
          if pace ~= shape.wide_pace then
            needs_general = true
            break
          end
          if low == NO_WIDE_LOW then low = false end
        end
        if due > shape.excess then
          needs_general = true
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
          needs_general = true
          break
        end
        if head ~= WINDOW then ends = charged - charged % span + span end
        if now - now % span > charged then due = 0 end
        age = age + now - charged
      end
      -- A key from the future needs the general path.
      if charged > now or age >= AGE_MAX then
        needs_general = true
        break
      end
      state = { due, false, age, owing, low, ends, shape }
      states[key_index] = state
    elseif state[SHAPE] ~= shape and state[SHAPE].spec ~= shape.spec then
      needs_general = true
      break
    end
    levels_at_work[level] = state
    if state[DUE] > shape.most then fits = false end
  end
  if needs_general then break end

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
    statuses[n] = ALL
  elseif ahead then
    -- Again, with all its levels.
    fitting, fitted = 0, fitted - fitting
  else
    local commits = pattern.charges
    for level = 1, levels do
      local shape = pattern[level]
      local becomes = shape.step > 0 and CHARGED or PEEKED
      if levels_at_work[level][DUE] > shape.most then
        becomes = DENIED
        if shape.enforced then commits = false end
      end
      statuses[n + shape.level] = becomes
    end
    for level = 1, levels do
      local shape, state = pattern[level], levels_at_work[level]
      if statuses[n + shape.level] ~= CHARGED then
        -- It is not charged.
      elseif commits then
        state[DUE] = state[DUE] + shape.step
        state[FIRST] = state[FIRST] or state[DUE]
      else
        statuses[n + shape.level] = PEEKED
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
