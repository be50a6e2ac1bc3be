-- Arithmetic

-- The quotient and the remainder of (a * b + c) / d, exactly. A quotient of more than MAX is only
-- known to be one.
local function muldiv(a, b, c, d)
  local product = a * b + c
  if product <= MAX then
    local rest = product % d
    return (product - rest) / d, rest
  end
  -- The digits of `a`, from the highest, times what is left of `b`: as large as still fits.
  local b_rest, c_rest = b % d, c % d
  local quotient, rest, shorter = 0, 0, 1
  while shorter * d * 4 <= MAX do
    shorter = shorter * 2
  end
  if shorter > 1 then
    local place = 1
    while place * shorter <= a do
      place = place * shorter
    end
    local left = a
    while place >= 1 do
      local digit = floor(left / place)
      left = left - digit * place
      local sum = rest * shorter + digit * b_rest
      rest = sum % d
      quotient = quotient * shorter + (sum - rest) / d
      place = place / shorter
    end
  else
    -- Bit by bit, without ever adding two numbers that are too large together.
    local place, left = 4503599627370496, a
    while place >= 1 do
      quotient = quotient * 2
      if rest >= d - rest then
        rest, quotient = rest - (d - rest), quotient + 1
      else
        rest = rest + rest
      end
      if left >= place then
        left = left - place
        if rest >= d - b_rest then
          rest, quotient = rest - (d - b_rest), quotient + 1
        else
          rest = rest + b_rest
        end
      end
      place = place / 2
    end
  end
  if rest >= d - c_rest then
    rest, quotient = rest - (d - c_rest), quotient + 1
  else
    rest = rest + c_rest
  end
  return quotient + a * ((b - b_rest) / d) + (c - c_rest) / d, rest
end

local function muldiv_up(a, b, c, d)
  local quotient, rest = muldiv(a, b, c, d)
  return rest > 0 and quotient + 1 or quotient
end

local function min(a, b) return a < b and a or b end
local function max(a, b) return a > b and a or b end

-- How much of a surcharge still counts beside what is owed already.
local function surchargeable(limit, owed, extra)
  return min(extra, max(2 * limit - owed, 0))
end

local function unreadable() error('a value of another format', 0) end

-- Numbers in values: whole millions (units, seconds) are much shorter than millionths.
local function put(number)
  return number % 1000000 == 0 and number / 1000000 or -number
end

local function get(short)
  local number = short < 0 and -short or short * 1000000
  return number <= MAX and number or unreadable()
end
