-- The batch: what it asks, and where that is at work; what became of levels, and the answers in full.
-- One after the other, an ask is decided by quick.lua or, if that cannot, by the machinery, `answer`.
local codes, at, told, n, answers, answer, leave = nil, 2, {}, 0, {}, nil, nil
codes = { byte(ARGV[2] or '', 1, -1) }
local last, first_other, patterns = #codes, 3 + (codes[1] or 0), {}
local other = first_other

-- The ask at work, where it goes on behind its head, and the places of its keys; then the next is.
local function next_ask()
  local pattern, places, ask, count, _ = codes[at], {}, nil, nil, nil
  at = at + 1
  if pattern > 0 then
    ask = ARGV[2 + pattern]
    _, count = byte(ask, 1, 2)
    for key = 1, count do
      local place = byte(ask, #ask - count + key)
      if place == 0 then place, at = codes[at], at + 1 end
      places[key] = place
    end
    return ask, 3, places
  end
  ask, other = ARGV[other], other + 1
  _, count = byte(ask, 1, 2)
  for key = 1, count do
    local low, high = byte(ask, 1 + 2 * key, 2 + 2 * key)
    places[key] = low + 256 * high
  end
  return ask, 3 + 2 * count, places
end
