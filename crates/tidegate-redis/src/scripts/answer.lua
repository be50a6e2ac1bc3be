-- What the machinery does for the batch: answers an ask of any kind, and leaves what it has changed.

local acts = { [0] = decide, decide, amend_all, lend }

local function answer(ask, kind, cursor)
  used, changing = {}, false
  local done, reply = pcall(acts[kind], ask, cursor, now)
  if done then return reply end
  local why = tostring(reply)
  if changing then
    -- What it had changed when it failed is nobody's to build on.
    for _, part in ipairs(used) do
      if part.slot then failed[part.slot.key], part.slot.broken = why, why end
    end
  end
  return '\1' .. why
end

local function leave()
  for _, slot in pairs(slots) do
    if slot.changed and not slot.broken then stage(slot) end
  end
end

return { answer = answer, leave = leave }
