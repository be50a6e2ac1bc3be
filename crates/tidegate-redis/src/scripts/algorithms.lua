-- The algorithms. Each has:
--   fresh()                      the state of a new key
--   evaluate(s, spec, now, cost) nil if the cost fits, else how long to wait, or NEVER
--   charge(s, spec, now, cost, holder), refund and surcharge(s, spec, now, charged_at, amount)
--   owed(s, spec, now)           what is spent of the limit; places have none
--   reading(s, spec, now)        what could be spent, and when nothing is owed any more, or NEVER
--   ends(s, spec)                from when the state equals a fresh one, or nil
--   same_pace(one, other)        whether one state serves both specs
--   read_spec(command, at)       the spec in a command, and where it ends
--   save(out, n, spec, s, entry), load(values, n, entry): an account in a value, as numbers

local makers =
  { token_bucket, sliding_window, sliding_counter, fixed_window, quota, concurrency, total, total }
local made = {}

local function read_limit_and_window(command, at)
  local limit, window, next = unpack_from('<I8I8', command, at)
  return { limit = limit, window = window }, next
end

local function algorithm(kind)
  local one = made[kind]
  if not one then
    one = makers[kind]()
    one.read_spec = one.read_spec or read_limit_and_window
    made[kind] = one
  end
  return one
end
