-- What quick.lua leaves: values of the states that were charged, in the store if nothing is left to
-- decide, else for the machinery those of the ask that it decides next. They mean something until some
-- instant at the most, which is rounded up, so that most charges leave the end of their key where it is.
local ask, from, handed
if at <= last then
  ask, from, handed = next_ask()
end
local lasts = {}
for nth = 1, handed and #handed or own do
  local place = handed and handed[nth] or nth
  local state, value = held[place], sealed[place]
  local first = state and state[FIRST]
  if first then
    local shape, due, age, was = state[SHAPE], state[DUE], state[AGE], state[UNTIL]
    local quantum, ends = shape.quantum, nil
    if shape.kind == BUCKET then
      local pace, owing, low = shape.pace, state[OWING], state[LOW]
      -- Only a second charge leaves a low-water mark where nothing was owed.
      if not low and due > first then low = first / shape.period end
      if pace > 0 and (owing == age or owing == 0) and due < TIGHT_DUE and (low or 0) < NO_LOW then
        value = pack(TIGHT_FORM, pace + (owing == age and TIGHT or TIGHT_NEW) + mark, now, age, due,
          low or NO_LOW)
      else
        value = pack(WIDE_FORM, shape.size + WIDE + mark, now, age, owing, shape.wide_pace, due,
          low or NO_WIDE_LOW)
      end
      ends = now + due / shape.rate
    else
      local span = shape.span
      ends = now - now % span + span
      value = pack(WINDOW_FORM, WINDOW + mark, now, age, shape.room, span / 1000, due)
    end
    ends = ends - ends % quantum + quantum
    local key, before = KEYS[place], stored[place]
    if handed then
      staged[key], expires[key] = value, ends
    else
      -- To change a value in its place takes the server half as long as to set it.
      local in_place, text, reply = before and #before == #value, nil, nil
      if not in_place or not was or was - was % quantum + quantum ~= ends then
        text = lasts[ends]
        if not text then
          -- As text, which Lua makes of whole numbers much faster than Redis does of any. By the
          -- server's clock ends are instants; a test's clock stands still, and the server's does not.
          local base = mark == 0 and now or 0
          text = format('%d', (ends > base and ends - base + 999 or 0) / 1000 + spare_ms)
          lasts[ends] = text
        end
      end
      if in_place then
        if text then call(EXPIRE, key, text) end
        reply = call('SETRANGE', key, '0', value)
        if reply ~= #value then failed[key] = reply.err end
      else
        reply = call('SET', key, value, EXPIRES, text)
        if reply.err then failed[key] = reply.err end
      end
    end
  elseif state then
    value = stored[place]
  end
  if not handed then
    shown[place] = value or '\0'
  elseif state then
    held[place], sealed[place] = nil, value
  end
end
