//! The daemon.

pub mod secret;
pub mod state;
pub mod watch;
