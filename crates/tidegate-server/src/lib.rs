//! The daemon: everything that listens.

mod admin;
mod app;
mod body;
mod config;
mod demo;
mod drain;
mod error;
pub mod files;
mod framing;
mod guard;
mod jwt;
mod leases;
mod listen;
mod open_files;
mod pace;
mod policies;
mod reload;
mod respond;
mod secret;
mod server;
mod sources;
mod state;
mod stop;
mod surfaces;
mod telemetry;
mod tls;
mod tokens;
mod watch;
mod wire;

pub use config::{Bounds, Config, JwtConfig, TlsConfig};
pub use error::StartError;
pub use pace::Pace;
pub use server::run;
pub use telemetry::{Format as LogFormat, Settings as LogSettings};
pub use tidegate::Identities;
pub use tracing::level_filters::LevelFilter;
