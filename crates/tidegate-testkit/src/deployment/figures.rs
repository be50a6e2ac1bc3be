//! What was measured, and what is assumed. Change these, and the table of the document follows.

/// What a call that decides one request with one bucket takes of the server's CPU, in nanoseconds.
/// Measured on Redis 7.0.15 with the calls that nodes send, numbered and on distinct keys: 16.8 µs alone
/// and 5.4 with 8 in a call, on a server that always has something to do; 4.4 with 50 and 4.0 with 64,
/// on one that sleeps between calls, which takes it some 40 µs more for each.
/// `benches/redis.rs` measures the largest calls again.
pub const ALONE_NS: u64 = 16_800;
/// What of that is each request's own; the rest is the call's, whatever it holds.
pub const EACH_NS: u64 = 4_000;
/// What each further bucket of a request adds: a key of its own. Three, of which one is everybody's, take
/// 8.0 µs with 50 in a call, and 7.3 with 64.
pub const FURTHER_LIMIT_NS: u64 = 3_300;
/// A call and its reply, and what the server needs for it: no node sends sooner again.
pub const CALL_US: u64 = 500;
/// How many requests a call holds at most.
pub const ASKS_MAX: u64 = 64;
/// How much of a core may be busy, in per cent: beyond it answers come late.
pub const BUSY_MAX: u64 = 60;

/// What is offered.
pub const REQUESTS_PER_S: u64 = 1_000_000;
/// Who offers it: the second asks half as often as the first, the third a third (Zipf).
pub const CLIENTS: u32 = 1_000_000;
/// Whom they belong to.
pub const TENANTS: u32 = 1_000;
/// The gateways.
pub const NODES: u32 = 20;
/// How long is simulated, and how much of it only to warm up.
pub const SECONDS: u64 = 2;
/// As said.
pub const WARM_UP_SECONDS: u64 = 1;
/// Which requests come.
pub const SEED: u64 = 4;

/// The limits, as tokens a second and burst: of a client, of a tenant, of all together.
pub const CLIENT: (u64, u64) = (100, 2_000);
/// As said.
pub const TENANT: (u64, u64) = (10_000, 20_000);
/// As said.
pub const ALL: (u64, u64) = (1_200_000, 1_200_000);

/// Leases, as the store has them: how long one should do and how long it lasts, in microseconds.
pub const LEASE_FOR_US: u64 = 1_000_000;
/// As said.
pub const LEASE_LASTS_US: u64 = 3_000_000;
/// A node borrows one of so many parts of what is there, for each node.
pub const LEASE_PARTS: u64 = 4;
/// It borrows nothing where it would spend less than this in that time.
pub const LEASE_WORTH: u64 = 4;
/// A loan of less is of no use.
pub const LEASE_LEAST: u64 = 2;
/// How long until a bucket that lent nothing is asked again.
pub const LEASE_RETRY_US: u64 = 100_000;
/// How long a refusal is known for at most.
pub const KNOWN_US_MAX: u64 = 1_000_000;
