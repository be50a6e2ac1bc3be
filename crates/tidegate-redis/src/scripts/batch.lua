-- The batch: its replies, the ask at work and where its keys begin. One after the other, an ask is
-- decided by quick.lua or, if that cannot, by the machinery, `answer`.
local replies, index, cursor, answer, leave = {}, 2, 1, nil, nil

-- Of the ask at work in quick.lua: its last level's numbers, and the ask if they are all that it
-- says; what its levels come to.
local kind, enforced, cost, rate, period, common, limit, same
local values, ending, told = {}, {}, {}
-- How replies to so many levels are packed.
local replied = { '<BI8Bi8I8I8i8' }
