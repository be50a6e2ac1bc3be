//! The daemon.

pub mod admin;
pub mod guard;
pub mod telemetry;
pub mod tokens;
