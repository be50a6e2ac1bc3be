-- The batch

local now, spare_ms
if ARGV[1] == '' then
  local time = redis.call('TIME')
  now, spare_ms = time[1] * 1000000 + time[2], MARGIN_MS
else
  -- A test's clock stands still while the server's goes on: no key may go by that.
  now, spare_ms = unpack_from('<I8', ARGV[1]), 3600000
end

local replies, users, cursor = {}, {}, 1
for index = 2, #ARGV do
  local ask = ARGV[index]
  local kind, keys = byte(ask, 1, 2)
  used, changing = {}, false
  local act = (kind == 1 and decide) or (kind == 3 and lend) or amend_all
  local done, reply = pcall(act, ask, cursor, now)
  if not done then
    if changing then
      -- What it had changed when it failed is nobody's to build on.
      for _, part in ipairs(used) do
        if part.slot then part.slot.changed, part.slot.broken = true, tostring(reply) end
      end
    end
    reply = '\1' .. tostring(reply)
  end
  replies[index - 1], users[index - 1] = reply, used
  cursor = cursor + (keys or 0)
end

local failed = false
for _, slot in pairs(slots) do
  if slot.changed and not slot.broken then write(slot, now, spare_ms) end
  failed = failed or (slot.changed and slot.broken)
end
if failed then
  for index, own in ipairs(users) do
    for _, part in ipairs(own) do
      local slot = part.slot
      if slot and slot.changed and slot.broken then replies[index] = '\1' .. slot.broken end
    end
  end
end
return replies
