-- Carries out any command on the general path.

local handlers = { [PLAIN] = decide, decide, amend_all, lend }

local function run_general(command, from, key_indices)
  used, changing = {}, false
  local done, reply = pcall(handlers[byte(command)], command, from, key_indices, now)
  if not done then
    local why = tostring(reply)
    if changing then
      -- A command that fails halfway leaves its keys unusable for the rest of the batch.
      for _, part in ipairs(used) do
        if part.entry then failed[part.entry.key], part.entry.broken = why, why end
      end
    end
    reply = '\1' .. why
  end
  n = n + 1
  statuses[n], answers[#answers + 1] = FULL, reply
end

-- Stages all changed keys.
local function stage_all()
  for _, entry in pairs(entries) do
    if entry.changed and not entry.broken then stage(entry) end
  end
end

return run_general, stage_all
