//! `tidegate admin`: a client of the admin listener.

mod client;
mod keys;

use clap::{Args, Subcommand};

use super::Error;
use client::Client;

/// Look into a running daemon and change what it counts.
///
/// Talks to the admin listener (`--admin` of `tidegate serve`), by default the one on this machine.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin keys list --limit login-ip\n  tidegate admin keys show --user u1\n  tidegate admin keys delete --user u1 --dry-run"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The keys of the store: what is counted, for whom, and how much of it is left
    Keys(keys::Arguments),
}

/// Which daemon is asked.
#[derive(Args)]
struct Daemon {
    /// The admin listener
    #[arg(
        long,
        value_name = "URL",
        env = "TIDEGATE_ADMIN_URL",
        default_value = "http://127.0.0.1:7071"
    )]
    url: String,
    /// A token, where the daemon has --tokens; to delete, that of an operator. Better in the variable
    /// than on the command line, which others on the machine can see
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

impl Daemon {
    fn client(&self) -> Result<Client, Error> {
        Client::new(&self.url, self.token.as_deref())
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Error> {
    let What::Keys(arguments) = &arguments.what;
    keys::run(arguments)
}
