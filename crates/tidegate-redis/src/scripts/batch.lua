-- The batch: one ask after the other, as long as none takes the machinery.

local replies, index, cursor = {}, 2, 1
while index <= #ARGV do
  local ask = ARGV[index]
  local kind, keys = byte(ask, 1, 2)
  local reply = kind == PLAIN and quick(ask, cursor)
  if not reply then break end
  replies[index - 1] = reply
  index, cursor = index + 1, cursor + keys
end
