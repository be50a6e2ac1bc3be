-- Keys that quick.lua has at work: their states at the time of the batch, as arrays of these.
local DEBT, REST, CHARGED_AT, AGE, OWING, LOW, UNTIL, SHAPE, CHANGED = 1, 2, 3, 4, 5, 6, 7, 8, 9

-- What its values begin with beside their form.
local mark = spare_ms == MARGIN_MS and ROUNDED or 0

-- The value of a state that was charged, and until when it means something at the most: rounded up,
-- so that most charges leave the end of their key where it is. Whether that is what the key has.
function seal(state)
  local shape, debt, charged, age = state[SHAPE], state[DEBT], state[CHARGED_AT], state[AGE]
  local period, value, ends = shape.period, nil, nil
  if shape.kind == BUCKET then
    local rate, rest, owing, low = shape.rate, state[REST], state[OWING], state[LOW]
    local due = debt * period - rest
    local over = due % rate
    ends = charged + (due - over) / rate + (over > 0 and 1 or 0)
    if shape.pace and (owing == age or owing == 0) and debt < NO_LOW then
      value = pack(TIGHT_PACED, (owing == age and TIGHT or TIGHT_NEW) + mark, charged, age,
        shape.pace, rest, debt, low or NO_LOW)
    else
      value = pack(WIDE_PACED, WIDE + mark, charged, age, owing, shape.wide_pace, shape.size, rest,
        debt, low or NO_WIDE_LOW)
    end
  else
    ends = charged - charged % period + period
    value = pack(WINDOW_FORM, WINDOW + mark, charged, age, shape.room, period / 1000, debt)
  end
  local quantum = shape.quantum
  ends = ends - ends % quantum + quantum
  return value, ends, ends == state[UNTIL]
end
