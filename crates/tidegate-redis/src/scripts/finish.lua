-- What is left to do for the batch: to write what it has changed.

-- How long the answers of a batch are kept, longer than anybody waits for them.
local LANE_MS = '12000'

if leave then leave() end
for key in next, failed do
  staged[key] = nil
end

for key, value in next, staged do
  local ends, reply = expires[key], nil
  if ends and value then
    local left_ms = (ends > now and ends - now + 999 or 0) / 1000 + spare_ms
    -- As text, which Lua makes of whole numbers much faster than Redis does of any; and with the
    -- command that has the fewest words to read.
    reply = call('PSETEX', key, format('%d', left_ms), value)
  elseif value then
    reply = call('SET', key, value)
  else
    reply = call('DEL', key)
  end
  if type(reply) == 'table' and reply.err then failed[key] = reply.err end
end

-- Nobody is told what could not be stored, nor what was decided by it.
if next(failed) then
  cursor = 1
  for index = 2, #ARGV do
    local keys = byte(ARGV[index], 2)
    for place = cursor, cursor + keys - 1 do
      local why = failed[KEYS[place]]
      if why then replies[index - 1] = '\1' .. why end
    end
    cursor = cursor + keys
  end
end

if lane then
  local kept = call('SET', lane, msgpack(pack('<I8', number), replies), 'PX', LANE_MS)
  -- A batch without asks is there to find out whether anything can be written.
  if #ARGV == 1 and type(kept) == 'table' and kept.err then return kept end
end
return replies
