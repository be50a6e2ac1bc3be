-- Ledgers: an account for each pace that a key was charged at, in the field order of the crate.

local ACCOUNTS_MAX = 8

local function own_account(entry, spec)
  local same_pace, accounts = entry.algorithm.same_pace, entry.accounts
  for position = 1, #accounts do
    if same_pace(accounts[position].spec, spec) then return accounts[position] end
  end
  return nil
end

-- The state that limits a spec: that of its pace or, if there is none yet, the strictest one.
local function state_for(entry, spec, now)
  local accounts = entry.accounts
  if #accounts == 1 then return accounts[1].state end
  local own = own_account(entry, spec)
  if own then return own.state end
  local strictest, least = nil, nil
  for _, account in ipairs(accounts) do
    local left = entry.algorithm.reading(account.state, spec, now)
    if not least or left < least then strictest, least = account.state, left end
  end
  return strictest
end

local function close_where_first_over(entry)
  local accounts, ends = entry.accounts, entry.algorithm.ends
  local function ends_at(account) return ends(account.state, account.spec) or MAX end
  local soonest = 2
  for position = 3, #accounts do
    if ends_at(accounts[position]) < ends_at(accounts[soonest]) then soonest = position end
  end
  local closed = accounts[soonest]
  accounts[soonest] = accounts[#accounts]
  accounts[#accounts] = nil
  if ends_at(accounts[1]) < ends_at(closed) then accounts[1] = closed end
end

local function open(entry, spec, now)
  local own = own_account(entry, spec)
  if own then
    own.spec = spec
    return
  end
  local state = {}
  for name, value in pairs(state_for(entry, spec, now)) do
    state[name] = value
  end
  local accounts = entry.accounts
  while #accounts >= ACCOUNTS_MAX do
    close_where_first_over(entry)
  end
  accounts[#accounts + 1] = { spec = spec, state = state }
end

local function close_what_is_over(entry, spec, now)
  local accounts = entry.accounts
  if #accounts == 1 then return end
  local same_pace, ends = entry.algorithm.same_pace, entry.algorithm.ends
  local function live(account)
    if same_pace(account.spec, spec) then return true end
    local at = ends(account.state, account.spec)
    return not at or at > now
  end
  local kept = { accounts[1] }
  for position = 2, #accounts do
    if live(accounts[position]) then kept[#kept + 1] = accounts[position] end
  end
  if not live(kept[1]) and #kept > 1 then
    kept[1] = kept[#kept]
    kept[#kept] = nil
  end
  entry.accounts = kept
end

-- When the whole ledger equals a new one; nil if it never does by itself.
local function ledger_ends(entry)
  local latest, accounts, ends = 0, entry.accounts, entry.algorithm.ends
  for position = 1, #accounts do
    local at = ends(accounts[position].state, accounts[position].spec)
    if not at then return nil end
    if at > latest then latest = at end
  end
  return latest
end
