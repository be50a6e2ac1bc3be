-- The end of a batch: writes what the general path has changed, and makes the reply.

-- How long a reply is kept: longer than any client waits for it.
local REPLY_TTL_MS = '12000'

if stage_all then stage_all() end
for key in next, failed do
  staged[key] = nil
end

for key, value in next, staged do
  local ends, reply = expires[key], nil
  if ends and value then
    local left_ms = (ends > now and ends - now + 999 or 0) / 1000 + spare_ms
    reply = call('PSETEX', key, format('%d', left_ms), value)
  elseif value then
    reply = call('SET', key, value)
  else
    reply = call('DEL', key)
  end
  if type(reply) == 'table' and reply.err then failed[key] = reply.err end
end

-- Commands whose keys could not be written fail, whatever was decided.
if next(failed) then
  local was, given, from, before = statuses, answers, 0, 0
  statuses, n, answers, at, other = {}, 0, {}, 2, first_other
  while at <= last do
    local levels, why = codes[at] > 0 and patterns[codes[at]], nil
    local _, _, key_indices = next_command()
    for _, key_index in ipairs(key_indices) do
      why = failed[KEYS[key_index]] or why
    end
    if was[from + 1] == FULL then
      from, before, n = from + 1, before + 1, n + 1
      statuses[n], answers[#answers + 1] = FULL, why and '\1' .. why or given[before]
    else
      if why then
        n = n + 1
        statuses[n], answers[#answers + 1] = FAILED, '\1' .. why
      end
      local said = was[from + 1] == ALL and 1 or levels.levels
      for level = 1, said do
        statuses[n + level] = was[from + level]
      end
      from, n = from + said, n + said
    end
  end
end

for index, reply in next, answers do
  answers[index] = pack('<I2', #reply) .. reply
end
local reply = pack('<I8', now) .. string.char(unpack(statuses, 1, n)) .. table.concat(shown)
  .. table.concat(answers)
if idempotency_key then
  local stored_reply = call('SET', idempotency_key, pack('<BI8', IDEMPOTENCY_HEAD, number) .. reply, 'PX', REPLY_TTL_MS)
  -- A batch without commands is a probe: it finds out whether the server accepts writes.
  if last < 2 and type(stored_reply) == 'table' and stored_reply.err then return stored_reply end
end
return reply
