-- Tidegate's one script: carries out a batch of commands, each all or nothing.
--
-- KEYS     the keys of all commands, each once; behind them the idempotency key, if the batch has a number
-- ARGV[1]  empty, or the time in microseconds (8 bytes; tests set it, all ones mean the server's clock),
--          and behind it the batch's number (8 bytes), if it has one
-- ARGV[2]  a byte: the number of patterns. Then each command: its pattern, and the indices of its own
--          keys among KEYS, a byte each; or 0 for a command with an argument of its own
-- ARGV[3+] the patterns: what plain commands say apart from their own keys. Each ends with a byte per
--          level, which is the index of its key if that is the same for all commands, or 0. Then the
--          other commands, in order. codec.rs writes both
-- Reply    one string: the time (8 bytes); for each plain command ALL or a status byte per level, or FULL
--          for a response below, or FAILED and those bytes; for each key the value that plain commands
--          left or found, or a zero byte; the other responses, in order, each behind its length (2
--          bytes): byte 0 and the response, or byte 1 and an error
--
-- The algorithms are those of the crate `tidegate`, function by function, and must stay so: a test sends
-- the same commands to both and compares every number. The crate explains them; the comments here say
-- only what differs in Redis.
--
-- All numbers are integers. Amounts are millionths, times microseconds since the epoch. Lua's numbers are
-- doubles, exact up to 2^53: amounts and times stay below that, products go through `muldiv`, and larger
-- results count as MAX (as a time: 285 years).
--
-- The body runs anew for every call. Nearly all commands are of a few simple kinds, which fast_path.lua
-- decides. The general path is a function that is built when the first other command needs it. The
-- client computes the readings of the fast path itself, from the state and what was charged to it.
--
-- The files of this directory are one script, in the order in which script.rs joins them.

local MAX = 9007199254740991
-- The waiting time of a denial that never ends, and of a reset that never comes.
local NEVER = -1

-- The kinds of algorithms that are named here; the others are indices into `makers`.
local BUCKET, FIXED, PLACES, CEILING = 1, 4, 6, 8
-- The kind of commands that fast_path.lua decides, as a rule.
local PLAIN = 0
-- The status of a level; of a whole command that has a response of its own, or an error, or of which all
-- levels were charged.
local PEEKED, CHARGED, DENIED, FULL, FAILED, ALL = 0, 1, 2, 3, 4, 5

local byte, sub, format, floor = string.byte, string.sub, string.format, math.floor
local call, pack, unpack_from = redis.pcall, struct.pack, struct.unpack
local msgpack, msgunpack = cmsgpack.pack, cmsgpack.unpack_limit
