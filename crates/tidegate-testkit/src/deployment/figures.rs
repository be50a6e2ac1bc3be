//! Measured and assumed figures. The table of the document follows from them.

/// The server's CPU time for a call that decides one request with one bucket, in nanoseconds.
/// Measured on Redis 7.0.15 with the calls that nodes send, numbered and on distinct keys: 16.8 µs alone
/// and 5.4 with 8 in a call, on a server that always has something to do; 4.4 with 50 and 4.0 with 64,
/// on one that sleeps between calls, which takes it some 40 µs more for each.
/// The benchmark `redis` measures the largest calls again.
pub const ALONE_NS: u64 = 16_800;
/// The part of that time for each request; the rest is for the call, whatever it holds.
pub const EACH_NS: u64 = 4_000;
/// The time for each further bucket of a request, on a key of its own. Three, of which one is shared, take
/// 8.0 µs with 50 in a call, and 7.3 with 64.
pub const FURTHER_LIMIT_NS: u64 = 3_300;
/// The time of a call and its reply: no node sends sooner again.
pub const CALL_US: u64 = 500;
/// How many requests a call holds at most.
pub const ASKS_MAX: u64 = 64;
/// The busy share of a core, in per cent, beyond which answers come late.
pub const BUSY_MAX: u64 = 60;

/// Requests a second.
pub const REQUESTS_PER_S: u64 = 1_000_000;
/// Clients: the second asks half as often as the first, the third a third (Zipf).
pub const CLIENTS: u32 = 1_000_000;
/// Tenants of the clients.
pub const TENANTS: u32 = 1_000;
/// The gateways.
pub const NODES: u32 = 20;
/// The simulated time.
pub const SECONDS: u64 = 2;
/// The part of it that only warms up.
pub const WARM_UP_SECONDS: u64 = 1;
/// The seed of the traffic.
pub const SEED: u64 = 4;

/// The limit of a client, as tokens a second and burst.
pub const CLIENT: (u64, u64) = (100, 2_000);
/// The limit of a tenant.
pub const TENANT: (u64, u64) = (10_000, 20_000);
/// The limit of all tenants together.
pub const ALL: (u64, u64) = (1_200_000, 1_200_000);

/// How long a loan should suffice, in microseconds.
pub const LEASE_FOR_US: u64 = 1_000_000;
/// How long a loan lasts, in microseconds.
pub const LEASE_LASTS_US: u64 = 3_000_000;
/// A node borrows the N-th part of the level, divided by the nodes.
pub const LEASE_PARTS: u64 = 4;
/// A node borrows nothing where it would spend less than this in that time.
pub const LEASE_WORTH: u64 = 4;
/// A loan of less is of no use.
pub const LEASE_LEAST: u64 = 2;
/// How long until a bucket that lent nothing is asked again.
pub const LEASE_RETRY_US: u64 = 100_000;
/// How long a refusal is known for at most.
pub const KNOWN_US_MAX: u64 = 1_000_000;
