-- Asks

local function evaluate(level, now)
  local slot, spec = level.slot, level.spec
  if not slot then
    if level.cost > spec.limit then return NEVER end
    return nil
  end
  local state = slot.accounts and state_for(slot, spec, now) or slot.algorithm.fresh()
  return slot.algorithm.evaluate(state, spec, now, level.cost)
end

local function reading(level, now)
  local slot, spec = level.slot, level.spec
  if not slot then return max(spec.limit - level.cost, 0), NEVER end
  local state = slot.accounts and state_for(slot, spec, now) or slot.algorithm.fresh()
  return slot.algorithm.reading(state, spec, now)
end

-- The accounts of a slot that is charged now, one of them at the pace of the spec.
local function charged_accounts(slot, spec, now)
  changing = true
  local one, accounts = slot.algorithm, slot.accounts
  if not accounts then
    accounts = { { spec = spec, state = one.fresh() } }
    slot.accounts, slot.born, slot.charged = accounts, now, now
    return accounts
  end
  if now > slot.charged then slot.charged = now end
  local held = accounts[1].spec
  if #accounts == 1 and (held == spec or one.same_pace(held, spec)) then
    accounts[1].spec = spec
    return accounts
  end
  open(slot, spec, now)
  close_what_is_over(slot, spec, now)
  return slot.accounts
end

-- Charges a level; returns when, never before what was charged to the same key, and its reading.
local function charge(level, now, holder)
  local slot, spec = level.slot, level.spec
  if not slot then return now, reading(level, now) end
  local one, accounts = slot.algorithm, charged_accounts(slot, spec, now)
  for place = 1, #accounts do
    one.charge(accounts[place].state, accounts[place].spec, now, level.cost, holder)
  end
  slot.changed, slot.ends = true, nil
  if #accounts > 1 then return slot.charged, reading(level, now) end
  -- What was just charged owes something: when it no longer does, its only account ends.
  local available, reset = one.reading(accounts[1].state, spec, now)
  if reset ~= NEVER then slot.ends = now + reset end
  return slot.charged, available, reset
end

-- A refusal at a new pace is remembered, or the old pace would pay off what it waits for.
local function remember(level, now)
  local slot = level.slot
  if slot and slot.accounts and not own_account(slot, level.spec) then
    changing = true
    open(slot, level.spec, now)
    settle_slot(slot)
  end
end

local function decide(ask, at, places, now)
  local levels, key, charges, count, holder = used, 1, nil, nil, nil
  charges, count, holder, at = unpack_from('<BBc8', ask, at)
  for index = 1, count do
    local kind, enforced, cost, next = unpack_from('<BBI8', ask, at)
    local level = { enforced = enforced == 1, cost = cost, spec = nil, slot = nil, wait = nil }
    local one = made[kind] or algorithm(kind)
    level.spec, at = one.read_spec(ask, next)
    if kind ~= CEILING then
      level.slot = usable(slot_of(places[key], kind, level.spec))
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
    local level, told = levels[index], nil
    local wait = level.wait
    if commits and not wait and level.cost > 0 then
      told = pack('<BI8Bi8I8I8i8', 0, now, 1, 0, charge(level, now, holder))
    else
      if wait then remember(level, now) end
      told = pack('<BI8Bi8I8I8i8', 0, now, wait and 2 or 0, wait or 0, 0, reading(level, now))
    end
    -- The time stands only before the first.
    reply = reply and reply .. sub(told, 10) or told
  end
  return reply or pack('<BI8', 0, now)
end

local REFUND, SURCHARGE, RELEASE, RENEW, RESET, DEBIT = 1, 2, 3, 4, 5, 6

-- Charges what nobody asked for; whether there is something to charge.
local function debit(one, now)
  local slot = one.slot
  if not slot or slot.kind == PLACES or one.amount == 0 or is_anothers(slot) then return false end
  local algorithm, accounts = slot.algorithm, charged_accounts(slot, one.spec, now)
  for _, account in ipairs(accounts) do
    local state, spec = account.state, account.spec
    local counted =
      surchargeable(spec.limit or spec.burst, algorithm.owed(state, spec, now), one.amount)
    if counted > 0 then algorithm.charge(state, spec, now, counted) end
  end
  settle_slot(slot)
  return true
end

-- Forgets a key, but for what nodes have borrowed: that is still out, and stays owed.
local function reset(slot, spec, now)
  local lent, out = slot.lent, 0
  if lent then
    settle_lent(slot, now)
    out = lent.now + lent.before
  end
  forget(slot)
  slot.changed, slot.ends = true, nil
  if out > 0 then
    local state = { owed = out, remainder = 0, at = now, since = now, low = 0 }
    slot.accounts, slot.born, slot.charged = { { spec = spec, state = state } }, now, now
    lends(slot, lent)
  end
end

-- Whether it found what it was to change.
local function amend(one, now)
  local slot, spec, change = one.slot, one.spec, one.change
  if change == DEBIT then return debit(one, now) end
  if not slot then return false end
  if change == RESET then
    -- What another algorithm left behind goes too.
    local found = slot.accounts or slot.other
    changing, slot.other = true, nil
    reset(slot, spec, now)
    return found
  end
  if not slot.accounts then return false end
  changing = true
  local found = true
  if change == REFUND or change == SURCHARGE then
    if one.charged_at < slot.born then return false end
    local act = change == REFUND and slot.algorithm.refund or slot.algorithm.surcharge
    for _, account in ipairs(slot.accounts) do
      local same = slot.algorithm.same_pace(account.spec, spec)
      act(account.state, same and spec or account.spec, now, one.charged_at, one.amount)
    end
  elseif slot.kind ~= PLACES or (change ~= RELEASE and change ~= RENEW) then
    return false
  else
    local state = slot.accounts[1].state
    found = slot.algorithm.renew(state, spec, now, one.holder)
    -- A place whose lease has run out is no longer held, though still listed.
    if change == RELEASE then found = slot.algorithm.release(state, one.holder) and found end
  end
  settle_slot(slot)
  return found
end

local function amend_all(ask, at, places, now)
  local amendments, key, count = used, 1, nil
  count, at = unpack_from('<B', ask, at)
  for index = 1, count do
    local kind, change, amount, charged_at, holder, next = unpack_from('<BBI8I8c8', ask, at)
    local one = { change = change, amount = amount, charged_at = charged_at, holder = holder }
    one.spec, at = algorithm(kind).read_spec(ask, next)
    if kind ~= CEILING then
      one.slot = slot_of(places[key], kind, one.spec)
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
