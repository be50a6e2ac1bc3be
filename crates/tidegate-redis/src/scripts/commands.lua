-- The commands of the batch, and their statuses and responses. Each is decided by fast_path.lua or, if
-- that cannot, by the general path.
local codes, at, statuses, n, answers, run_general, stage_all = nil, 2, {}, 0, {}, nil, nil
codes = { byte(ARGV[2] or '', 1, -1) }
local last, first_other, patterns = #codes, 3 + (codes[1] or 0), {}
local other = first_other

-- Takes the next command: its argument, where it continues behind its head, and the indices of its keys.
local function next_command()
  local pattern, key_indices, command, count, _ = codes[at], {}, nil, nil, nil
  at = at + 1
  if pattern > 0 then
    command = ARGV[2 + pattern]
    _, count = byte(command, 1, 2)
    for key = 1, count do
      local key_index = byte(command, #command - count + key)
      if key_index == 0 then key_index, at = codes[at], at + 1 end
      key_indices[key] = key_index
    end
    return command, 3, key_indices
  end
  command, other = ARGV[other], other + 1
  _, count = byte(command, 1, 2)
  for key = 1, count do
    local low, high = byte(command, 1 + 2 * key, 2 + 2 * key)
    key_indices[key] = low + 256 * high
  end
  return command, 3 + 2 * count, key_indices
end

-- The fields of a state that fast_path.lua has loaded. DUE is what a bucket is owed or a window has used;
-- FIRST is the same after the first charge of the batch.
local DUE, FIRST, AGE, OWING, LOW, UNTIL, SHAPE = 1, 2, 3, 4, 5, 6, 7

-- Added to the first byte of written values, and the commands that set expiries. By the server's clock
-- expiries are instants; a test's clock stands still, so that they are durations.
local rounded = spare_ms == MARGIN_MS and ROUNDED or 0
local EXPIRE, EXPIRES = 'PEXPIREAT', 'PXAT'
if rounded == 0 then
  EXPIRE, EXPIRES = 'PEXPIRE', 'PX'
end
