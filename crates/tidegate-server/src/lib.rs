//! The daemon.

pub mod files;
pub mod policies;
pub mod secret;
pub mod state;
pub mod surfaces;
pub mod watch;
