-- The short forms of values: of keys that have one account with common numbers, which are nearly all.
-- Fields are fixed-width integers, so that none can be infinite or no number.
--
-- The first byte is the algorithm plus 64. In the forms of a bucket, numbers of its spec are the higher
-- bits of the same integer. The time of the last charge follows in 7 bytes. Then, in 5 bytes each, how
-- long before it the key was born and, in the wide form of a bucket, since when something is owed.
--
-- What a bucket is owed is written as in fast_path.lua: times the period, less the remainder. There are few
-- fields: each costs Lua a tenth of all the rest.

local TIGHT, TIGHT_NEW, WIDE, WINDOW = 65, 73, 81, 68
-- Form, count (14 bits), period (16), common in units (10); charged; born; due; low. The burst is the
-- count. Something is owed since the key was born or, where it is new, since the last charge. 28 bytes
-- fit into an allocation of 48.
local TIGHT_FORM = '<I6I7I5I6I4'
-- Form, common in units (16 bits), burst in units (24); charged; born; since when something is owed;
-- count and period (24 bits each); due; low. 42 bytes fit into an allocation of 64.
local WIDE_FORM = '<I6I7I5I5I6I7I6'
-- Limit in units, window in milliseconds, used.
local WINDOW_FORM = '<BI7I5I4I4I6'

-- Added to the first byte where fast_path_write.lua rounded the expiry up, so that the value alone says
-- whether a later charge has to move it.
local ROUNDED = 32
local TIGHT_ROUNDED, TIGHT_NEW_ROUNDED, WIDE_ROUNDED = 97, 105, 113

-- No low-water mark, in the tight and the wide form; a window uses less than the latter. Dues are below
-- the limits of the next line.
local NO_LOW, NO_WIDE_LOW = 4294967295, 281474976710655
local TIGHT_DUE, WIDE_DUE = 281474976710656, MAX
local AGE_MAX = 1099511627776
