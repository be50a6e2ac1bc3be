-- The heartbeat of a node: says that the node is alive, counts the nodes, and puts the deployment's
-- secret back where the server has lost it.
--
-- KEYS     the nodes, by when they last said so; the secret
-- ARGV     this node's name; for how many milliseconds a silent node counts; the secret, or nothing; a
--          digest of the secret that this node hashes keys with, or nothing
-- Reply    how many nodes there are; 1 if the server's secret is this node's; how many of the first 64
--          nodes have another digest
--
-- A time in the future was written before the clock was set back, or by the server before a failover.
-- A node whose digest is known has it behind its name.
local t = redis.call('TIME')
local now, alive = t[1] * 1000 + math.floor(t[2] / 1000), tonumber(ARGV[2])
local name, digest = ARGV[1], ARGV[4]
if digest ~= '' then
  redis.call('ZREM', KEYS[1], name)
  name = name .. ':' .. digest
end
redis.call('ZADD', KEYS[1], string.format('%.0f', now), name)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - alive))
redis.call('ZREMRANGEBYSCORE', KEYS[1], string.format('(%.0f', now + alive), '+inf')
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', alive * 4))
local is_same = true
if ARGV[3] ~= '' then
  redis.call('SET', KEYS[2], ARGV[3], 'NX')
  is_same = redis.call('GET', KEYS[2]) == ARGV[3]
end
local foreign = 0
if digest ~= '' then
  for _, node in ipairs(redis.call('ZRANGE', KEYS[1], 0, 63)) do
    local other = string.match(node, ':(.*)$')
    if other and other ~= digest then
      foreign = foreign + 1
    end
  end
end
return {redis.call('ZCARD', KEYS[1]), is_same and 1 or 0, foreign}
