-- Tidegate's one script: decides a batch of asks, each all or nothing.
--
-- KEYS     the keys of all asks, each once. Behind them, where the batch has a number, that of its lane
-- ARGV[1]  empty, or the time to go by in microseconds (8 bytes; tests set it, all ones are the
--          server's own), and behind it the batch's number in its lane (8 bytes), if it has one
-- ARGV[2]  a byte: how many patterns there are. Then one ask behind the other: its pattern, and the
--          places of its own keys among KEYS, a byte each; or 0 for one that has an argument of its
--          own
-- ARGV[3+] the patterns, which are what plain asks say but for their own keys, each once: last come a
--          byte for each level, which is the place of its key if it is the same for all asks, or 0;
--          then the other asks, in order. Both are packed by codec.rs
-- Reply    one string: the time (8 bytes); for each plain ask ALL or a byte per level, which is what
--          became of it, or FULL for an answer below, or FAILED and those bytes; for each key the
--          value that plain asks left or found, or a zero byte; the other answers, in order, each
--          behind its length (2 bytes): byte 0 and the answer, or byte 1 and why there is none
--
-- The algorithms are those of the crate `tidegate`, function by function, and must stay so: a test
-- sends the same asks to both and compares every number. What they mean is written down there; the
-- comments here say only what is different in Redis.
--
-- All numbers are whole. Amounts are millionths, times microseconds since the epoch. Lua's numbers
-- are doubles, exact up to 2^53: amounts and times stay below it, products go through `muldiv`, and
-- what would still be larger counts as MAX (in time: 285 years).
--
-- The body runs anew for every call. Nearly all asks are of a few simple kinds, which quick.lua
-- decides without any machinery; the machinery is made when the first other one needs it. Their
-- readings are left to the client, which has the algorithms too: a state and what was charged to it
-- say it all.
--
-- The files of this directory are one script, in the order in which script.rs joins them.

local MAX = 9007199254740991
-- A denial that no waiting ends, and a reset that never comes.
local NEVER = -1

-- The kinds that are told apart here; the others are only known by their place among the algorithms.
local BUCKET, FIXED, PLACES, CEILING = 1, 4, 6, 8
-- The kind of asks that quick.lua can decide, as a rule.
local PLAIN = 0
-- What became of a level; and of a whole ask that is answered in full, or not at all, or of which all
-- levels were charged.
local LOOKED, CHARGED, DENIED, FULL, FAILED, ALL = 0, 1, 2, 3, 4, 5

local byte, sub, format, floor = string.byte, string.sub, string.format, math.floor
local call, pack, unpack_from = redis.pcall, struct.pack, struct.unpack
local msgpack, msgunpack = cmsgpack.pack, cmsgpack.unpack_limit
