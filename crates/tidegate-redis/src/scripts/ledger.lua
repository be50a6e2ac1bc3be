-- Ledgers: an account for each pace that a key was charged at, in the field order of the crate.

local ACCOUNTS_MAX = 8

local function own_account(slot, spec)
  local same_pace, accounts = slot.algorithm.same_pace, slot.accounts
  for place = 1, #accounts do
    if same_pace(accounts[place].spec, spec) then return accounts[place] end
  end
  return nil
end

-- The state that a spec is under: of its pace or, where there is none yet, the one that leaves the
-- least to it.
local function state_for(slot, spec, now)
  local accounts = slot.accounts
  if #accounts == 1 then return accounts[1].state end
  local own = own_account(slot, spec)
  if own then return own.state end
  local strictest, least = nil, nil
  for _, account in ipairs(accounts) do
    local left = slot.algorithm.reading(account.state, spec, now)
    if not least or left < least then strictest, least = account.state, left end
  end
  return strictest
end

local function close_where_first_over(slot)
  local accounts, ends = slot.accounts, slot.algorithm.ends
  local function ends_at(account) return ends(account.state, account.spec) or MAX end
  local soonest = 2
  for place = 3, #accounts do
    if ends_at(accounts[place]) < ends_at(accounts[soonest]) then soonest = place end
  end
  local closed = accounts[soonest]
  accounts[soonest] = accounts[#accounts]
  accounts[#accounts] = nil
  if ends_at(accounts[1]) < ends_at(closed) then accounts[1] = closed end
end

local function open(slot, spec, now)
  local own = own_account(slot, spec)
  if own then
    own.spec = spec
    return
  end
  local state = {}
  for name, value in pairs(state_for(slot, spec, now)) do
    state[name] = value
  end
  local accounts = slot.accounts
  while #accounts >= ACCOUNTS_MAX do
    close_where_first_over(slot)
  end
  accounts[#accounts + 1] = { spec = spec, state = state }
end

local function close_what_is_over(slot, spec, now)
  local accounts = slot.accounts
  if #accounts == 1 then return end
  local same_pace, ends = slot.algorithm.same_pace, slot.algorithm.ends
  local function live(account)
    if same_pace(account.spec, spec) then return true end
    local at = ends(account.state, account.spec)
    return not at or at > now
  end
  local kept = { accounts[1] }
  for place = 2, #accounts do
    if live(accounts[place]) then kept[#kept + 1] = accounts[place] end
  end
  if not live(kept[1]) and #kept > 1 then
    kept[1] = kept[#kept]
    kept[#kept] = nil
  end
  slot.accounts = kept
end

-- From when the whole ledger equals a new one; nil if that never comes by itself.
local function ledger_ends(slot)
  local latest, accounts, ends = 0, slot.accounts, slot.algorithm.ends
  for place = 1, #accounts do
    local at = ends(accounts[place].state, accounts[place].spec)
    if not at then return nil end
    if at > latest then latest = at end
  end
  return latest
end
