-- Writes the states that fast_path.lua charged. If commands are left, only those of the next command are
-- passed to the general path, as values. Expiries are rounded up, so that most charges leave them as they
-- are.
local command, from, general_keys
if at <= last then
  command, from, general_keys = next_command()
end
local lasts = {}
for nth = 1, general_keys and #general_keys or own do
  local key_index = general_keys and general_keys[nth] or nth
  local state, value = states[key_index], sealed[key_index]
  local first = state and state[FIRST]
  if first then
    local shape, due, age, was = state[SHAPE], state[DUE], state[AGE], state[UNTIL]
    local quantum, ends = shape.quantum, nil
    if shape.kind == BUCKET then
      local pace, owing, low = shape.pace, state[OWING], state[LOW]
      -- Where nothing was owed, only a second charge leaves a low-water mark.
      if not low and due > first then low = first / shape.period end
      if pace > 0 and (owing == age or owing == 0) and due < TIGHT_DUE and (low or 0) < NO_LOW then
        value = pack(TIGHT_FORM, pace + (owing == age and TIGHT or TIGHT_NEW) + rounded, now, age, due,
          low or NO_LOW)
      else
        value = pack(WIDE_FORM, shape.size + WIDE + rounded, now, age, owing, shape.wide_pace, due,
          low or NO_WIDE_LOW)
      end
      ends = now + due / shape.rate
    else
      local span = shape.span
      ends = now - now % span + span
      value = pack(WINDOW_FORM, WINDOW + rounded, now, age, shape.room, span / 1000, due)
    end
    ends = ends - ends % quantum + quantum
    local key, before = KEYS[key_index], stored[key_index]
    if general_keys then
      staged[key], expires[key] = value, ends
    else
      -- Changing a value in place takes the server half as long as setting it.
      local in_place, text, reply = before and #before == #value, nil, nil
      if not in_place or not was or was - was % quantum + quantum ~= ends then
        text = lasts[ends]
        if not text then
          -- As text: Lua formats integers much faster than Redis formats numbers.
          local base = rounded == 0 and now or 0
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
    value = stored[key_index]
  end
  if not general_keys then
    shown[key_index] = value or '\0'
  elseif state then
    states[key_index], sealed[key_index] = nil, value
  end
end
