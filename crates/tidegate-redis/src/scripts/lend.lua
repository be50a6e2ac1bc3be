-- Loans: what a node reports of earlier ones, and what it gets. Each report is sent once and never
-- again: twice it would free what is still out.

-- Takes a node's report of what it spent and what it no longer needs. Once the epoch's loans are
-- forgotten there is nothing to take it from, and what came back has been refilled or is lost.
local function report(slot, now, epoch, spent, returned)
  local lent = slot.lent
  if not lent then return end
  settle_lent(slot, now)
  local which = (epoch == lent.epoch and 'now') or (epoch == lent.epoch - 1 and 'before')
  if not which then return end
  spent = min(spent, lent[which])
  returned = min(returned, lent[which] - spent)
  lent[which] = lent[which] - spent - returned
  local out = lent.now + lent.before
  for _, account in ipairs(slot.accounts) do
    local s = account.state
    s.owed = max(s.owed - returned, out)
    if s.owed == 0 then s.remainder = 0 end
  end
end

-- Lends as much as is wished, but no more than one of so many parts of what is there, and nothing
-- where that is too little to be of use.
local function grant(slot, spec, now, wish, parts, least)
  local state = slot.accounts and state_for(slot, spec, now) or slot.algorithm.fresh()
  local granted = min(wish, floor(slot.algorithm.reading(state, spec, now) / parts))
  if granted == 0 or granted < least then return 0 end
  charge({ slot = slot, spec = spec, cost = granted }, now)
  lends(slot, slot.lent or { epoch = 0, now = 0, before = 0 })
  settle_lent(slot, now)
  slot.lent.now = slot.lent.now + granted
  return granted
end

local function lend(ask, at, places, now)
  local spec, wish, parts, least, count
  spec, at = algorithm(BUCKET).read_spec(ask, at)
  wish, parts, least, count, at = unpack_from('<I8I8I8B', ask, at)
  local slot = usable(slot_of(places[1], BUCKET, spec))
  used[1] = { slot = slot }
  changing = true
  for _ = 1, count do
    local epoch, spent, returned
    epoch, spent, returned, at = unpack_from('<I8I8I8', ask, at)
    report(slot, now, epoch, spent, returned)
  end
  local granted = grant(slot, spec, now, wish, parts, least)
  local left = reading({ slot = slot, spec = spec }, now)
  local epoch = slot.lent and slot.lent.epoch or 0
  local out = slot.lent and out_at(slot.lent, now) or 0
  if slot.accounts and count + granted > 0 then settle_slot(slot) end
  return pack('<BI8I8I8I8I8I8', 0, now, granted, epoch, LASTS, left, out)
end
