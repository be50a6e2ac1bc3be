//! `tidegate admin keys`

mod delete;
mod pages;
mod print;
mod selection;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::json;

use super::{Client, Daemon};
use crate::command::Error;
use crate::say;
use pages::Pages;
use selection::Selection;

/// The keys of the store: what is counted, for whom, and how much of it is left.
///
/// A subject is said as a request would say it. Its keys are then found without searching; what no limit
/// counts by is not looked at. A tier or an operation that is not said stands for each of them.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin keys list --limit login-ip\n  tidegate admin keys show --user u1\n  tidegate admin keys delete --limit login-ip --ip 192.0.2.1"
)]
pub(super) struct Arguments {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// One line for each key
    List(List),
    /// All that is known of a key, or of each key of a subject
    Show(Show),
    /// Forget what keys have counted: their subjects start afresh
    Delete(delete::Arguments),
}

/// One line for each key: its name, its limit, and what it means.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin keys list\n  tidegate admin keys list --limit login-ip --count 1000\n  tidegate admin keys list --ip 192.0.2.1 --json"
)]
struct List {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
    /// At most so many keys
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// All that is known of a key, or of each key of a subject. Ends with 1 if there is none.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin keys show --user u1\n  tidegate admin keys show booking-user:kV3xQ0aZr7TcWn --json"
)]
struct Show {
    /// The key's name, as the list has it
    #[arg(conflicts_with = "Selection")]
    key: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// `show` is for people: who wants more than this wants `list --json`.
const SHOWN_MAX: usize = 1_000;

pub(super) fn run(arguments: &Arguments) -> Result<bool, Error> {
    match &arguments.action {
        Action::List(arguments) => list(arguments),
        Action::Show(arguments) => show(arguments),
        Action::Delete(arguments) => delete::run(arguments),
    }
}

fn list(arguments: &List) -> Result<bool, Error> {
    let count = usize::try_from(arguments.count)?;
    let (query, client) = (arguments.selection.query(None), arguments.daemon.client()?);
    let (keys, more) = Pages::new(&client, Method::GET, query, !arguments.json).keys(count)?;
    if arguments.json {
        say!("{:#}", json!({ "keys": keys, "more": more }));
    } else {
        print::list(&keys, more);
    }
    Ok(true)
}

fn show(arguments: &Show) -> Result<bool, Error> {
    if arguments.key.is_none() && arguments.selection.is_empty() {
        return Err("say which: a key, a limit or a subject, such as --user u1".into());
    }
    let query = arguments.selection.query(arguments.key.as_deref());
    let client = arguments.daemon.client()?;
    let (keys, more) = Pages::new(&client, Method::GET, query, !arguments.json).keys(SHOWN_MAX)?;
    if arguments.json {
        say!("{:#}", json!({ "keys": keys, "more": more }));
    } else if keys.is_empty() {
        say!("There is no such key: it is as good as never used.");
    } else {
        print::each(&keys, more);
    }
    Ok(!keys.is_empty())
}
