-- Loan requests: takes a node's reports on earlier loans, and lends. Each report is sent once and never
-- again: a repeated one would free tokens that are still on loan.

-- Takes a node's report of what it spent and what it returns. Once the epoch is forgotten, the report
-- means nothing: what it returns has been refilled meanwhile.
local function report(entry, now, epoch, spent, returned)
  local lent = entry.lent
  if not lent then return end
  settle_lent(entry, now)
  local which = (epoch == lent.epoch and 'now') or (epoch == lent.epoch - 1 and 'before')
  if not which then return end
  spent = min(spent, lent[which])
  returned = min(returned, lent[which] - spent)
  lent[which] = lent[which] - spent - returned
  local out = lent.now + lent.before
  for _, account in ipairs(entry.accounts) do
    local s = account.state
    s.owed = max(s.owed - returned, out)
    if s.owed == 0 then s.remainder = 0 end
  end
end

-- Lends what is wished, at most one of `parts` parts of what is available, and nothing below `least`.
local function grant(entry, spec, now, wish, parts, least)
  local state = entry.accounts and state_for(entry, spec, now) or entry.algorithm.fresh()
  local granted = min(wish, floor(entry.algorithm.reading(state, spec, now) / parts))
  if granted == 0 or granted < least then return 0 end
  charge({ entry = entry, spec = spec, cost = granted }, now)
  lends(entry, entry.lent or { epoch = 0, now = 0, before = 0 })
  settle_lent(entry, now)
  entry.lent.now = entry.lent.now + granted
  return granted
end

local function lend(command, at, key_indices, now)
  local spec, wish, parts, least, count
  spec, at = algorithm(BUCKET).read_spec(command, at)
  wish, parts, least, count, at = unpack_from('<I8I8I8B', command, at)
  local entry = usable(entry_of(key_indices[1], BUCKET, spec))
  used[1] = { entry = entry }
  changing = true
  for _ = 1, count do
    local epoch, spent, returned
    epoch, spent, returned, at = unpack_from('<I8I8I8', command, at)
    report(entry, now, epoch, spent, returned)
  end
  local granted = grant(entry, spec, now, wish, parts, least)
  local left = reading({ entry = entry, spec = spec }, now)
  local epoch = entry.lent and entry.lent.epoch or 0
  local out = entry.lent and out_at(entry.lent, now) or 0
  if entry.accounts and count + granted > 0 then settle_entry(entry) end
  return pack('<BI8I8I8I8I8I8', 0, now, granted, epoch, LASTS, left, out)
end
