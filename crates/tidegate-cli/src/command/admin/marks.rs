//! `tidegate admin bans` and `tidegate admin flags`

mod selection;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::pages::{Items, ListKind, target};
use super::{Daemon, plain_text};
use crate::command::Error;
use crate::command::validate::plural;
use crate::{paint, say};
use selection::Selection;

const BANS: ListKind = ListKind { path: "/admin/v1/bans", member: "bans", id: "id", noun: "ban" };
const FLAGS: ListKind =
    ListKind { path: "/admin/v1/flags", member: "flags", id: "id", noun: "flag" };

#[derive(Subcommand)]
pub(super) enum BanAction {
    /// One line for each ban: whom, until when, made by what, and why
    #[command(
        after_help = "Examples:\n  tidegate admin bans list\n  tidegate admin bans list --user u1\n  tidegate admin bans list --count 1000 --json"
    )]
    List(MarkList),
    /// Ban a user, a client, an address, a network or the value of an attribute
    ///
    /// A subject that is banned already stays banned until the later end.
    #[command(
        after_help = "Examples:\n  tidegate admin bans add --user u1 --for 1h --reason 'card testing'\n  tidegate admin bans add --network 203.0.113.0/24 --for 7d\n  tidegate admin bans add --policy shop --attr email=a@b.c --for 15min --json"
    )]
    Add {
        #[command(flatten)]
        add: NewMark,
        /// For how long, such as 15min, 1h or 7d
        #[arg(long = "for", value_name = "TIME", required_unless_present = "permanent")]
        lasts: Option<String>,
        /// Until somebody removes it
        #[arg(long, conflicts_with = "lasts")]
        permanent: bool,
    },
    /// End bans, by their subject or by their id. Ends with 1 if there is none
    #[command(
        after_help = "Examples:\n  tidegate admin bans remove --user u1\n  tidegate admin bans remove 5f0c1d2e3a4b5c6d7e8f90a1b2c3d4e5 --json"
    )]
    Remove(MarkRemoval),
}

#[derive(Subcommand)]
pub(super) enum FlagAction {
    /// One line for each flag: which, whom, set by what, and why
    #[command(
        after_help = "Examples:\n  tidegate admin flags list\n  tidegate admin flags list --user u1 --json"
    )]
    List(MarkList),
    /// Flag a user, a client, an address, a network or the value of an attribute
    #[command(
        after_help = "Examples:\n  tidegate admin flags add review --user u1\n  tidegate admin flags add wash-trading --user u1 --for 30d --reason 'ticket 7'"
    )]
    Add {
        /// The flag's name
        flag: String,
        #[command(flatten)]
        add: NewMark,
        /// For how long, such as 30d; until it is removed if left out
        #[arg(long = "for", value_name = "TIME")]
        lasts: Option<String>,
    },
    /// Remove flags, by their subject or by their id. Ends with 1 if there is none
    #[command(
        after_help = "Examples:\n  tidegate admin flags remove --user u1\n  tidegate admin flags remove --user u1 --flag review"
    )]
    Remove {
        #[command(flatten)]
        remove: MarkRemoval,
        /// Only the flag of this name
        #[arg(long, value_name = "NAME")]
        flag: Option<String>,
    },
}

#[derive(Args)]
pub(super) struct MarkList {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
    /// The most to show
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
}

#[derive(Args)]
pub(super) struct NewMark {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
    /// Why, for those who read the list
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

#[derive(Args)]
pub(super) struct MarkRemoval {
    /// The id, as the list has it with --json
    #[arg(conflicts_with = "MarkSelection")]
    id: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
}

pub(super) fn run_bans(action: &BanAction) -> Result<bool, Error> {
    match action {
        BanAction::List(list) => list.run(BANS),
        BanAction::Add { add, lasts, permanent } => add.run(BANS, None, lasts.as_ref(), *permanent),
        BanAction::Remove(remove) => remove.run(BANS, None),
    }
}

pub(super) fn run_flags(action: &FlagAction) -> Result<bool, Error> {
    match action {
        FlagAction::List(list) => list.run(FLAGS),
        FlagAction::Add { flag, add, lasts } => add.run(FLAGS, Some(flag), lasts.as_ref(), false),
        FlagAction::Remove { remove, flag } => remove.run(FLAGS, flag.as_ref()),
    }
}

impl MarkList {
    fn run(&self, kind: ListKind) -> Result<bool, Error> {
        let (parameters, count) = (self.selection.parameters(), usize::try_from(self.count)?);
        let marks = kind.fetch(&self.daemon, &parameters, count)?;
        if self.daemon.json {
            kind.print_json(&marks);
        } else {
            print_lines(kind, &marks);
        }
        Ok(true)
    }
}

impl NewMark {
    fn run(
        &self,
        kind: ListKind,
        flag: Option<&String>,
        lasts: Option<&String>,
        is_permanent: bool,
    ) -> Result<bool, Error> {
        let mut body = json!({ "key": self.selection.key()? });
        let (policy, reason) = (self.selection.policy.as_ref(), self.reason.as_ref());
        let fields = [("policy", policy), ("reason", reason), ("flag", flag), ("for", lasts)];
        for (name, value) in fields {
            if let Some(value) = value {
                body[name] = json!(value);
            }
        }
        if is_permanent {
            body["permanent"] = json!(true);
        }
        let mark = self.daemon.client()?.post(kind.path, &body)?;
        if self.daemon.json {
            say!("{mark:#}");
        } else {
            say!("{}  {}", paint::strong(subject(&mark)), details(&mark));
        }
        Ok(true)
    }
}

impl MarkRemoval {
    fn run(&self, kind: ListKind, flag: Option<&String>) -> Result<bool, Error> {
        let mut parameters = self.selection.parameters();
        parameters.extend(self.id.clone().map(|id| ("id".to_owned(), id)));
        if parameters.is_empty() {
            return Err("say whose: an id, or such as --user u1".into());
        }
        parameters.extend(flag.cloned().map(|flag| ("flag".to_owned(), flag)));
        let target = target(kind.path, &parameters);
        let answer = self.daemon.client()?.send(&Method::DELETE, &target)?;
        let removed = answer["removed"].as_u64().unwrap_or_default();
        let nouns = plural(usize::try_from(removed).unwrap_or(usize::MAX), kind.noun);
        match removed {
            _ if self.daemon.json => say!("{answer:#}"),
            0 => say!("There is no such {}.", kind.noun),
            _ => say!("removed {removed} {nouns}"),
        }
        Ok(removed > 0)
    }
}

/// One line for each mark.
fn print_lines(kind: ListKind, marks: &Items) {
    let widths = marks.items.iter().map(|mark| subject(mark).chars().count());
    let width = widths.max().unwrap_or_default();
    for mark in &marks.items {
        say!("{}  {}", paint::strong(format!("{:<width$}", subject(mark))), details(mark));
    }
    kind.print_total(marks);
}

/// `user u1`.
fn subject(mark: &Value) -> String {
    let parts = mark["key"].as_object().into_iter().flatten();
    let part =
        |(name, value): (&String, &Value)| format!("{} {}", paint::plain(name), plain_text(value));
    parts.map(part).collect::<Vec<_>>().join(", ")
}

/// Which flag, until when, by what and why.
fn details(mark: &Value) -> String {
    let flag = mark["flag"].as_str().map(|flag| paint::careful(paint::plain(flag)));
    let left = match mark["left_ms"].as_u64() {
        None => "until it is removed".to_owned(),
        Some(ms) => format!("for another {}s", ms.div_ceil(1_000)),
    };
    let source = format!("by {}", plain_text(&mark["source"]));
    let policy = mark["policy"].as_str().map(|policy| format!("in {}", paint::plain(policy)));
    let reason = mark["reason"].as_str().filter(|reason| !reason.is_empty()).map(paint::plain);
    let parts = [flag, Some(left), Some(source), policy, reason];
    parts.into_iter().flatten().collect::<Vec<_>>().join("  ")
}
