-- The values of keys that have one account with common numbers: nearly all of them. Fields have a
-- fixed place, so that nothing in them can be no number, or none that is finite.
--
-- A value begins with a byte, which is the algorithm, and 64 for these forms. In a bucket's, numbers
-- of its spec stand above it in the same number. The time of the last charge follows in 7 bytes, and
-- in 5 bytes each how long before it the key was born and, in the wide form of a bucket, since when
-- something is owed.
--
-- What is owed to a bucket is written as in quick.lua: times the period, less the remainder. There are
-- few fields, as each takes Lua a tenth as long as all the rest.

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

-- Added to the first byte where the key lasts until the end that seal.lua rounds up, so that the value
-- alone says whether a later charge has to move it.
local ROUNDED = 32
local TIGHT_ROUNDED, TIGHT_NEW_ROUNDED, WIDE_ROUNDED = 97, 105, 113

-- No low-water mark; what is used of a window is less than the wide one. All dues are less than these.
local NO_LOW, NO_WIDE_LOW = 4294967295, 281474976710655
local TIGHT_DUE, WIDE_DUE = 281474976710656, MAX
local AGE_MAX = 1099511627776
