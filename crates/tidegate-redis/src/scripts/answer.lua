-- What the machinery does for the batch.

local acts = { [PLAIN] = decide, decide, amend_all, lend }

-- Answers an ask of any kind.
local function answer(ask, from, places)
  used, changing = {}, false
  local done, reply = pcall(acts[byte(ask)], ask, from, places, now)
  if not done then
    local why = tostring(reply)
    if changing then
      -- What it had changed when it failed is nobody's to build on.
      for _, part in ipairs(used) do
        if part.slot then failed[part.slot.key], part.slot.broken = why, why end
      end
    end
    reply = '\1' .. why
  end
  n = n + 1
  told[n], answers[#answers + 1] = FULL, reply
end

-- Leaves what was changed to be stored.
local function leave()
  for _, slot in pairs(slots) do
    if slot.changed and not slot.broken then stage(slot) end
  end
end

return answer, leave
