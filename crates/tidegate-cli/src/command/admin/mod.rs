//! `tidegate admin`: a client of the admin listener.

mod keys;
mod marks;
mod pages;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::Error;
use super::client::Client;
use crate::paint;

/// The daemon answers within a second or says why not.
const DEADLINE: Duration = Duration::from_secs(30);

/// Look into a running daemon and change what it counts and whom it bans.
///
/// Talks to the admin listener (`--admin` of `tidegate serve`), by default the one on this machine.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin keys list --limit login-ip\n  tidegate admin keys delete --user u1 --dry-run\n  tidegate admin bans list\n  tidegate admin bans add --ip 203.0.113.7 --for 1h --reason 'credential stuffing'\n  tidegate admin flags remove --user u1\n  tidegate admin keys list --limit login-ip --url https://gate.example:7071 --ca ca.pem"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    resource: Resource,
}

#[derive(Subcommand)]
enum Resource {
    /// The keys of the store: what is counted, for whom, and how much of it is left
    ///
    /// Name a subject as a request would. Its keys are then found without a search, in the limits that
    /// count by what you name. A tier or an operation that you leave out stands for each of them.
    #[command(
        subcommand,
        after_help = "Examples:\n  tidegate admin keys list --limit login-ip\n  tidegate admin keys show --user u1\n  tidegate admin keys delete --limit login-ip --ip 192.0.2.1"
    )]
    Keys(keys::Action),
    /// Who is refused whatever they ask for, since when, why and until when
    ///
    /// The list has the bans of penalties beside those of operators. They end by themselves.
    #[command(
        subcommand,
        after_help = "Examples:\n  tidegate admin bans list\n  tidegate admin bans add --user u1 --for 1h --reason 'card testing'\n  tidegate admin bans remove --user u1"
    )]
    Bans(marks::BanAction),
    /// Who is marked for people to look at; flags refuse nothing
    ///
    /// The list has the flags of penalties and ratios beside those of operators.
    #[command(
        subcommand,
        after_help = "Examples:\n  tidegate admin flags list\n  tidegate admin flags add review --user u1 --reason 'asked by finance'\n  tidegate admin flags remove --user u1"
    )]
    Flags(marks::FlagAction),
}

/// The daemon to ask, and how to print its answer.
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
    /// Certificates of authorities (PEM) to verify an https URL by, beside the well-known ones
    #[arg(long, value_name = "FILE", env = "TIDEGATE_ADMIN_CA")]
    ca: Option<PathBuf>,
    /// A token, where the daemon has --tokens; to change something, that of an operator. Better in the variable
    /// than on the command line, which others on the machine can see
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_ADMIN_TOKEN", hide_env_values = true)]
    token: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

impl Daemon {
    fn client(&self) -> Result<Client, Error> {
        Client::new(&self.url, self.ca.as_deref(), DEADLINE)?.with_token(self.token.as_deref())
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Error> {
    match &arguments.resource {
        Resource::Keys(action) => keys::run(action),
        Resource::Bans(action) => marks::run_bans(action),
        Resource::Flags(action) => marks::run_flags(action),
    }
}

/// A string of an answer, which must not drive the terminal.
fn plain_text(value: &Value) -> String {
    paint::plain(value.as_str().unwrap_or_default())
}
