-- What is left to do for the batch: to write what it has changed, and to say what became of it.

-- How long the reply to a batch is kept, longer than anybody waits for it.
local LANE_MS = '12000'

if leave then leave() end
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

-- Nobody is told what could not be stored, nor what was decided by it.
if next(failed) then
  local was, given, from, before = told, answers, 0, 0
  told, n, answers, at, other = {}, 0, {}, 2, first_other
  while at <= last do
    local levels, why = codes[at] > 0 and patterns[codes[at]], nil
    local _, _, places = next_ask()
    for _, place in ipairs(places) do
      why = failed[KEYS[place]] or why
    end
    if was[from + 1] == FULL then
      from, before, n = from + 1, before + 1, n + 1
      told[n], answers[#answers + 1] = FULL, why and '\1' .. why or given[before]
    else
      if why then
        n = n + 1
        told[n], answers[#answers + 1] = FAILED, '\1' .. why
      end
      local said = was[from + 1] == ALL and 1 or levels.levels
      for level = 1, said do
        told[n + level] = was[from + level]
      end
      from, n = from + said, n + said
    end
  end
end

for index, reply in next, answers do
  answers[index] = pack('<I2', #reply) .. reply
end
local reply = pack('<I8', now) .. string.char(unpack(told, 1, n)) .. table.concat(shown)
  .. table.concat(answers)
if lane then
  local kept = call('SET', lane, pack('<BI8', LANE_HEAD, number) .. reply, 'PX', LANE_MS)
  -- A batch without asks is there to find out whether anything can be written.
  if last < 2 and type(kept) == 'table' and kept.err then return kept end
end
return reply
