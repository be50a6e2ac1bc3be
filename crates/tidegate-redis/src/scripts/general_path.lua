-- Decides and amends, on the general path: any algorithm, any value.

local function evaluate(level, now)
  local entry, spec = level.entry, level.spec
  if not entry then
    if level.cost > spec.limit then return NEVER end
    return nil
  end
  local state = entry.accounts and state_for(entry, spec, now) or entry.algorithm.fresh()
  return entry.algorithm.evaluate(state, spec, now, level.cost)
end

local function reading(level, now)
  local entry, spec = level.entry, level.spec
  if not entry then return max(spec.limit - level.cost, 0), NEVER end
  local state = entry.accounts and state_for(entry, spec, now) or entry.algorithm.fresh()
  return entry.algorithm.reading(state, spec, now)
end

-- The accounts of an entry that is about to be charged; one of them is at the pace of the spec.
local function charged_accounts(entry, spec, now)
  changing = true
  local one, accounts = entry.algorithm, entry.accounts
  if not accounts then
    accounts = { { spec = spec, state = one.fresh() } }
    entry.accounts, entry.born, entry.charged = accounts, now, now
    return accounts
  end
  if now > entry.charged then entry.charged = now end
  local held = accounts[1].spec
  if #accounts == 1 and (held == spec or one.same_pace(held, spec)) then
    accounts[1].spec = spec
    return accounts
  end
  open(entry, spec, now)
  close_what_is_over(entry, spec, now)
  return entry.accounts
end

-- Charges a level; returns the time of the charge, which is never before earlier charges, and the reading.
local function charge(level, now, holder)
  local entry, spec = level.entry, level.spec
  if not entry then return now, reading(level, now) end
  local one, accounts = entry.algorithm, charged_accounts(entry, spec, now)
  for position = 1, #accounts do
    one.charge(accounts[position].state, accounts[position].spec, now, level.cost, holder)
  end
  entry.changed, entry.ends = true, nil
  if #accounts > 1 then return entry.charged, reading(level, now) end
  -- The entry was just charged, so its only account ends when nothing is owed any more.
  local available, reset = one.reading(accounts[1].state, spec, now)
  if reset ~= NEVER then entry.ends = now + reset end
  return entry.charged, available, reset
end

-- A refusal at a new pace opens an account: the old pace alone would pay off what the client waits for.
local function remember(level, now)
  local entry = level.entry
  if entry and entry.accounts and not own_account(entry, level.spec) then
    changing = true
    open(entry, level.spec, now)
    settle_entry(entry)
  end
end

local function decide(command, at, key_indices, now)
  local levels, key, charges, count, holder = used, 1, nil, nil, nil
  charges, count, holder, at = unpack_from('<BBc8', command, at)
  for index = 1, count do
    local kind, enforced, cost, next = unpack_from('<BBI8', command, at)
    local level = { enforced = enforced == 1, cost = cost, spec = nil, entry = nil, wait = nil }
    local one = made[kind] or algorithm(kind)
    level.spec, at = one.read_spec(command, next)
    if kind ~= CEILING then
      level.entry = usable(entry_of(key_indices[key], kind, level.spec))
      key = key + 1
    end
    levels[index] = level
  end
  local commits = charges == 1
  for index = 1, count do
    local level = levels[index]
    level.wait = evaluate(level, now)
    if level.wait and level.enforced then commits = false end
  end
  local reply = nil
  for index = 1, count do
    local level, packed = levels[index], nil
    local wait = level.wait
    if commits and not wait and level.cost > 0 then
      packed = pack('<BI8Bi8I8I8i8', 0, now, 1, 0, charge(level, now, holder))
    else
      if wait then remember(level, now) end
      packed = pack('<BI8Bi8I8I8i8', 0, now, wait and 2 or 0, wait or 0, 0, reading(level, now))
    end
    -- Only the first has the time in front.
    reply = reply and reply .. sub(packed, 10) or packed
  end
  return reply or pack('<BI8', 0, now)
end

local REFUND, SURCHARGE, RELEASE, RENEW, RESET, DEBIT = 1, 2, 3, 4, 5, 6

-- Charges whether it fits or not; returns whether there is a state to charge.
local function debit(one, now)
  local entry = one.entry
  if not entry or entry.kind == PLACES or one.amount == 0 or is_anothers(entry) then return false end
  local algorithm, accounts = entry.algorithm, charged_accounts(entry, one.spec, now)
  for _, account in ipairs(accounts) do
    local state, spec = account.state, account.spec
    local counted =
      surchargeable(spec.limit or spec.burst, algorithm.owed(state, spec, now), one.amount)
    if counted > 0 then algorithm.charge(state, spec, now, counted) end
  end
  settle_entry(entry)
  return true
end

-- Forgets a key, except for what nodes have borrowed: that is still on loan, and stays owed.
local function reset(entry, spec, now)
  local lent, out = entry.lent, 0
  if lent then
    settle_lent(entry, now)
    out = lent.now + lent.before
  end
  forget(entry)
  entry.changed, entry.ends = true, nil
  if out > 0 then
    local state = { owed = out, remainder = 0, at = now, since = now, low = 0 }
    entry.accounts, entry.born, entry.charged = { { spec = spec, state = state } }, now, now
    lends(entry, lent)
  end
end

-- Makes an amendment; returns whether it found what it was to change.
local function amend(one, now)
  local entry, spec, change = one.entry, one.spec, one.change
  if change == DEBIT then return debit(one, now) end
  if not entry then return false end
  if change == RESET then
    -- The value of another algorithm is deleted too.
    local found = entry.accounts or entry.other
    changing, entry.other = true, nil
    reset(entry, spec, now)
    return found
  end
  if not entry.accounts then return false end
  changing = true
  local found = true
  if change == REFUND or change == SURCHARGE then
    if one.charged_at < entry.born then return false end
    local act = change == REFUND and entry.algorithm.refund or entry.algorithm.surcharge
    for _, account in ipairs(entry.accounts) do
      local same = entry.algorithm.same_pace(account.spec, spec)
      act(account.state, same and spec or account.spec, now, one.charged_at, one.amount)
    end
  elseif entry.kind ~= PLACES or (change ~= RELEASE and change ~= RENEW) then
    return false
  else
    local state = entry.accounts[1].state
    found = entry.algorithm.renew(state, spec, now, one.holder)
    -- A place whose lease has expired is not held any more, though still listed.
    if change == RELEASE then found = entry.algorithm.release(state, one.holder) and found end
  end
  settle_entry(entry)
  return found
end

local function amend_all(command, at, key_indices, now)
  local amendments, key, count = used, 1, nil
  count, at = unpack_from('<B', command, at)
  for index = 1, count do
    local kind, change, amount, charged_at, holder, next = unpack_from('<BBI8I8c8', command, at)
    local one = { change = change, amount = amount, charged_at = charged_at, holder = holder }
    one.spec, at = algorithm(kind).read_spec(command, next)
    if kind ~= CEILING then
      one.entry = entry_of(key_indices[key], kind, one.spec)
      key = key + 1
    end
    amendments[index] = one
  end
  local reply = { pack('<BI8', 0, now) }
  for index, one in ipairs(amendments) do
    reply[index + 1] = amend(one, now) and '\1' or '\0'
  end
  return table.concat(reply)
end
