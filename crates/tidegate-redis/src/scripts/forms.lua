-- The values of keys that have one account with common numbers: nearly all of them. Fields have a
-- fixed place, so that nothing in them can be no number, or none that is finite.
--
-- A value begins with a byte, which is the algorithm, and 64 for these forms, and with the time of
-- the last charge in 7 bytes. In 5 bytes each follow how long before it the key was born and, in
-- the wide form of a bucket, since when something is owed.

local TIGHT, TIGHT_NEW, WIDE, WINDOW = 65, 73, 81, 68
-- Count, period, common in units, remainder in commons, owed, low; something is owed since the key
-- was born or, where it is new, since the last charge. 28 bytes fit into an allocation of 48.
local TIGHT_FORM = '<BI7I5I2I2BI2I4I4'
-- The same, with the burst in units behind the common. 44 bytes fit into an allocation of 64.
local WIDE_FORM = '<BI7I5I5I3I3I2I3I3I6I6'
-- Limit in units, window in milliseconds, used.
local WINDOW_FORM = '<BI7I5I4I4I6'
-- The same bytes, with the numbers of the spec taken together: count, period and common; count and
-- period, common and burst; limit and window aside.
local TIGHT_PACED, WIDE_PACED = '<BI7I5I5I2I4I4', '<BI7I5I5I6I5I3I6I6'

-- Added to the first byte where the key lasts until the end that `seal` rounds up, so that the value
-- alone says whether a later charge has to move it.
local ROUNDED = 32

-- No low-water mark; what is owed or used is less than it.
local NO_LOW, NO_WIDE_LOW = 4294967295, 281474976710655
local AGE_MAX = 1099511627776
