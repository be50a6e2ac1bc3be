-- What is left to do for the batch: to write what it has changed.

-- How long the answers of a batch are kept, longer than anybody waits for them.
local LANE_MS = '12000'

for key, value in next, staged do
  if not failed[key] then
    local until_ms, reply = expires[key], nil
    if not value then
      reply = redis.pcall('DEL', key)
    elseif until_ms then
      reply = redis.pcall('SET', key, value, 'PXAT', until_ms)
    else
      reply = redis.pcall('SET', key, value)
    end
    if type(reply) == 'table' and reply.err then failed[key] = reply.err end
  end
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
  local kept = redis.pcall('SET', lane, pack('<I8', number) .. msgpack(replies), 'PX', LANE_MS)
  -- A batch without asks is there to find out whether anything can be written.
  if #ARGV == 1 and type(kept) == 'table' and kept.err then return kept end
end
return replies
