//! `tidegate admin keys`

mod delete;
mod selection;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::pages::{Items, ListKind};
use super::{Daemon, plain_text};
use crate::command::Error;
use crate::{paint, say};
use selection::Selection;

const KEYS: ListKind = ListKind { path: "/admin/v1/keys", member: "keys", id: "key", noun: "key" };
/// `show` is for people; `list --json` is for programs that want more than this.
const SHOWN_MAX: usize = 1_000;

#[derive(Subcommand)]
pub(super) enum Action {
    /// One line for each key: its name, its limit or penalty, and its meaning
    #[command(
        after_help = "Examples:\n  tidegate admin keys list\n  tidegate admin keys list --limit login-ip --count 1000\n  tidegate admin keys list --ip 192.0.2.1 --json"
    )]
    List(List),
    /// All that is known of a key, or of each key of a subject. Ends with 1 if there is none
    #[command(
        after_help = "Examples:\n  tidegate admin keys show --user u1\n  tidegate admin keys show booking-user:kV3xQ0aZr7TcWn --json"
    )]
    Show(Show),
    /// Forget what keys have counted: their subjects start afresh, on all nodes
    ///
    /// Asks before it deletes more than one key.
    #[command(
        after_help = "Examples:\n  tidegate admin keys delete --user u1 --dry-run\n  tidegate admin keys delete --limit login-ip --ip 192.0.2.1\n  tidegate admin keys delete --limit login-ip --yes"
    )]
    Delete(delete::Delete),
}

#[derive(Args)]
pub(super) struct List {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
    /// The most keys to show
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
}

#[derive(Args)]
pub(super) struct Show {
    /// The key's name, as the list has it
    #[arg(conflicts_with = "Selection")]
    key: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
}

pub(super) fn run(action: &Action) -> Result<bool, Error> {
    match action {
        Action::List(list) => list.run(),
        Action::Show(show) => show.run(),
        Action::Delete(delete) => delete.run(),
    }
}

impl List {
    fn run(&self) -> Result<bool, Error> {
        let count = usize::try_from(self.count)?;
        let keys = KEYS.fetch(&self.daemon, &self.selection.parameters(), count)?;
        if self.daemon.json {
            KEYS.print_json(&keys);
        } else {
            print_lines(&keys);
        }
        Ok(true)
    }
}

impl Show {
    fn run(&self) -> Result<bool, Error> {
        let parameters = self.selection.parameters_or_key(self.key.as_deref())?;
        let keys = KEYS.fetch(&self.daemon, &parameters, SHOWN_MAX)?;
        if self.daemon.json {
            KEYS.print_json(&keys);
        } else if keys.items.is_empty() {
            say!("There is no such key: it is as good as never used.");
        } else {
            print_details(&keys);
        }
        Ok(!keys.items.is_empty())
    }
}

/// One line for each key.
fn print_lines(keys: &Items) {
    let width = |column: fn(&Value) -> String| {
        keys.items.iter().map(|key| column(key).chars().count()).max().unwrap_or_default()
    };
    let (names, owners) = (width(|key| plain_text(&key["key"])), width(owner));
    for key in &keys.items {
        let owner = paint::good(format!("{:<owners$}", owner(key)));
        say!("{:<names$}  {owner}  {}", plain_text(&key["key"]), plain_text(&key["meaning"]));
    }
    KEYS.print_total(keys);
}

/// All that is known of each key.
fn print_details(keys: &Items) {
    for (index, key) in keys.items.iter().enumerate() {
        if index > 0 {
            say!("");
        }
        line("key", &paint::strong(plain_text(&key["key"])));
        line(if key["penalty"].is_null() { "limit" } else { "penalty" }, &owner(key));
        let policy = &key["policy"];
        let none = || paint::faint("none in force");
        line("policy", &if policy.is_null() { none() } else { plain_text(policy) });
        print_reading(key);
        line("expires in", &duration(&key["expires_ms"]));
        line("means", &plain_text(&key["meaning"]));
        for pace in key["paces"].as_array().into_iter().flatten() {
            say!("{}", paint::faint("at this pace:"));
            print_reading(pace);
        }
    }
    if keys.items.len() > 1 || keys.more {
        say!("");
        KEYS.print_total(keys);
    }
}

fn print_reading(key: &Value) {
    if key["algorithm"].is_null() {
        return;
    }
    line("algorithm", &plain_text(&key["algorithm"]));
    line("spec", &plain_text(&key["spec"]));
    line("used", &format!("{} of {}", key["used"], key["capacity"]));
    line("available", &key["available"].to_string());
    line("as new in", &duration(&key["reset_ms"]));
}

fn line(label: &str, value: &str) {
    say!("{} {value}", paint::faint(format!("{label:<10}")));
}

/// The limit or penalty that a key is of.
fn owner(key: &Value) -> String {
    match (&key["limit"], &key["penalty"]) {
        (Value::Null, Value::Null) => "of no limit".to_owned(),
        (Value::Null, penalty) => plain_text(penalty),
        (limit, _) => plain_text(limit),
    }
}

/// Milliseconds, as seconds from one second on.
fn duration(ms: &Value) -> String {
    match ms.as_u64() {
        None => "never by itself".to_owned(),
        Some(ms) if ms < 1_000 => format!("{ms}ms"),
        Some(ms) => format!("{}s", ms.div_ceil(1_000)),
    }
}
