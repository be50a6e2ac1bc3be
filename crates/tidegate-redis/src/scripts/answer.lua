-- The rest of the batch, from the first ask on that takes the machinery.

local acts = { [PLAIN] = decide, decide, amend_all, lend }

local function answer(ask, kind)
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

while index <= #ARGV do
  local ask = ARGV[index]
  local kind, keys = byte(ask, 1, 2)
  replies[index - 1] = kind == PLAIN and quick(ask, cursor) or answer(ask, kind)
  index, cursor = index + 1, cursor + keys
end

for _, slot in pairs(slots) do
  if slot.changed and not slot.broken then stage(slot) end
end
