//! Real servers for tests: a single one, a primary with a replica and Sentinels, a cluster.
//!
//! Each listens on free ports of 127.0.0.1, keeps its files in a temporary folder, is ready when
//! its spawner returns, and ends with its owner. The binary is `redis-server` or `valkey-server`,
//! whichever is installed, or the one that `TIDEGATE_TEST_REDIS` names.

mod binary;
mod cluster;
mod ports;
mod reply;
mod sentinels;
mod server;
mod tls;
mod wait;

pub use cluster::Cluster;
pub use ports::free_port;
pub use reply::Reply;
pub use sentinels::Sentinels;
pub use server::Server;
pub use tls::Tls;
pub use wait::until;
