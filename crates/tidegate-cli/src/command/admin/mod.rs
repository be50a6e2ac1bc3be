//! `tidegate admin`: a client of the admin listener.

mod client;
mod keys;
mod marks;

use clap::{Args, Subcommand};

use super::Error;
use client::Client;

/// Look into a running daemon and change what it counts and whom it bans.
///
/// Talks to the admin listener (`--admin` of `tidegate serve`), by default the one on this machine.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin keys list --limit login-ip\n  tidegate admin keys delete --user u1 --dry-run\n  tidegate admin bans list\n  tidegate admin bans add --ip 203.0.113.7 --for 1h --reason 'credential stuffing'\n  tidegate admin flags remove --user u1"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// The keys of the store: what is counted, for whom, and how much of it is left
    Keys(keys::Arguments),
    /// Who is refused whatever they ask for, since when, why and until when
    Bans(marks::Bans),
    /// Who is marked for people to look at; flags refuse nothing
    Flags(marks::Flags),
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
    /// A token, where the daemon has --tokens; to change something, that of an operator. Better in the variable
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
    match &arguments.what {
        What::Keys(arguments) => keys::run(arguments),
        What::Bans(arguments) => marks::bans(arguments),
        What::Flags(arguments) => marks::flags(arguments),
    }
}
