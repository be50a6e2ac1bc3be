-- Keys that quick.lua has at work: their states at the time of the batch, as arrays of these. What is
-- due of a bucket, or used of a window: now, and after the first charge of the batch.
local DUE, FIRST, AGE, OWING, LOW, UNTIL, SHAPE = 1, 2, 3, 4, 5, 6, 7

-- What its values begin with beside their form.
local mark = spare_ms == MARGIN_MS and ROUNDED or 0
local EXPIRE, EXPIRES = 'PEXPIREAT', 'PXAT'
if mark == 0 then
  EXPIRE, EXPIRES = 'PEXPIRE', 'PX'
end
