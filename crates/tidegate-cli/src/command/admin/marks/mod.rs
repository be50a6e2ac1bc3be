//! `tidegate admin bans` and `tidegate admin flags`

mod print;
mod subject;

use clap::{Args, Subcommand};
use http::Method;
use serde_json::{Value, json};

use super::{Client, Daemon};
use crate::command::Error;
use crate::say;
use subject::Chosen;

/// How many marks are asked for at once.
const PAGE_MARKS: u64 = 1_000;

/// Who is refused whatever they ask for, since when, why and until when.
///
/// Bans that penalties made are listed beside those of operators, and end by themselves.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin bans list\n  tidegate admin bans add --user u1 --for 1h --reason 'card testing'\n  tidegate admin bans remove --user u1"
)]
pub(super) struct Bans {
    #[command(subcommand)]
    action: BanAction,
}

#[derive(Subcommand)]
enum BanAction {
    /// One line for each ban
    List(ListBans),
    /// Ban somebody for a time
    Add(AddBan),
    /// Let somebody in again
    Remove(RemoveBan),
}

/// One line for each ban: whom, until when, made by what, and why.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin bans list\n  tidegate admin bans list --user u1\n  tidegate admin bans list --count 1000 --json"
)]
struct ListBans {
    #[command(flatten)]
    list: List,
}

/// Ban a user, a client, an address, a network or the value of an attribute.
///
/// One who is banned already is banned until the later end.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin bans add --user u1 --for 1h --reason 'card testing'\n  tidegate admin bans add --network 203.0.113.0/24 --for 7d\n  tidegate admin bans add --policy shop --attr email=a@b.c --for 15min --json"
)]
struct AddBan {
    #[command(flatten)]
    add: Add,
    /// For how long, such as 15min, 1h or 7d
    #[arg(long = "for", value_name = "TIME")]
    lasts: String,
}

/// End a ban, by whom it is of or by its id. Ends with 1 if there is none.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin bans remove --user u1\n  tidegate admin bans remove 5f0c1d2e3a4b5c6d7e8f90a1b2c3d4e5 --json"
)]
struct RemoveBan {
    #[command(flatten)]
    remove: Remove,
}

/// Who is marked for people to look at; flags refuse nothing.
///
/// Flags that penalties and ratios set are listed beside those of operators.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin flags list\n  tidegate admin flags add review --user u1 --reason 'asked by finance'\n  tidegate admin flags remove --user u1"
)]
pub(super) struct Flags {
    #[command(subcommand)]
    action: FlagAction,
}

#[derive(Subcommand)]
enum FlagAction {
    /// One line for each flag
    List(ListFlags),
    /// Flag somebody
    Add(AddFlag),
    /// Take flags away
    Remove(RemoveFlags),
}

/// One line for each flag: which, whom, set by what, and why.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin flags list\n  tidegate admin flags list --user u1 --json"
)]
struct ListFlags {
    #[command(flatten)]
    list: List,
}

/// Flag a user, a client, an address, a network or the value of an attribute.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin flags add review --user u1\n  tidegate admin flags add wash-trading --user u1 --for 30d --reason 'ticket 7'"
)]
struct AddFlag {
    /// The flag's name
    flag: String,
    #[command(flatten)]
    add: Add,
    /// For how long, such as 30d; until it is removed if left out
    #[arg(long = "for", value_name = "TIME")]
    lasts: Option<String>,
}

/// Take flags away, by whom they are of or by their id. Ends with 1 if there is none.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin flags remove --user u1\n  tidegate admin flags remove --user u1 --flag review"
)]
struct RemoveFlags {
    #[command(flatten)]
    remove: Remove,
    /// Only the flag of this name
    #[arg(long, value_name = "NAME")]
    flag: Option<String>,
}

#[derive(Args)]
struct List {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    chosen: Chosen,
    /// At most so many
    #[arg(long, value_name = "N", default_value = "100", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Add {
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    chosen: Chosen,
    /// Why, for those who read the list
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Remove {
    /// The id, as the list has it with --json
    #[arg(conflicts_with = "Chosen")]
    id: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    chosen: Chosen,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// Which of the two.
#[derive(Clone, Copy)]
struct Kind {
    path: &'static str,
    /// In an answer, and of one.
    many: &'static str,
    one: &'static str,
}

const BANS: Kind = Kind { path: "/admin/v1/bans", many: "bans", one: "ban" };
const FLAGS: Kind = Kind { path: "/admin/v1/flags", many: "flags", one: "flag" };

pub(super) fn bans(arguments: &Bans) -> Result<bool, Error> {
    match &arguments.action {
        BanAction::List(arguments) => list(BANS, &arguments.list),
        BanAction::Add(AddBan { add: arguments, lasts }) => {
            add(BANS, arguments, &[("for", Some(lasts))])
        }
        BanAction::Remove(arguments) => remove(BANS, &arguments.remove, None),
    }
}

pub(super) fn flags(arguments: &Flags) -> Result<bool, Error> {
    match &arguments.action {
        FlagAction::List(arguments) => list(FLAGS, &arguments.list),
        FlagAction::Add(AddFlag { flag, add: arguments, lasts }) => {
            add(FLAGS, arguments, &[("flag", Some(flag)), ("for", lasts.as_ref())])
        }
        FlagAction::Remove(arguments) => {
            remove(FLAGS, &arguments.remove, arguments.flag.as_deref())
        }
    }
}

fn list(kind: Kind, arguments: &List) -> Result<bool, Error> {
    let (client, query) = (arguments.daemon.client()?, arguments.chosen.query());
    let (marks, more) = pages(kind, &client, &query, arguments.count)?;
    if arguments.json {
        say!("{:#}", json!({ kind.many: marks, "more": more }));
    } else {
        print::list(kind.one, &marks, more);
    }
    Ok(true)
}

/// The marks, at most so many, and whether there are more.
fn pages(
    kind: Kind,
    client: &Client,
    query: &str,
    count: u64,
) -> Result<(Vec<Value>, bool), Error> {
    let count = usize::try_from(count)?;
    let (mut marks, mut cursor) = (Vec::new(), String::new());
    loop {
        let page = count.saturating_sub(marks.len()).min(usize::try_from(PAGE_MARKS)?);
        let target = format!("{}?count={page}{query}{cursor}", kind.path);
        let mut answer = client.send(&Method::GET, &target)?;
        if let Value::Array(found) = answer[kind.many].take() {
            marks.extend(found);
        }
        match answer["cursor"].as_str() {
            Some(next) if marks.len() < count => cursor = format!("&cursor={next}"),
            next => return Ok((marks, next.is_some())),
        }
    }
}

fn add(kind: Kind, arguments: &Add, further: &[(&str, Option<&String>)]) -> Result<bool, Error> {
    let mut body = json!({ "key": arguments.chosen.key()? });
    let said = [("policy", arguments.chosen.policy()), ("reason", arguments.reason.as_ref())];
    for (name, value) in said.into_iter().chain(further.iter().copied()) {
        if let Some(value) = value {
            body[name] = json!(value);
        }
    }
    let added = arguments.daemon.client()?.post(kind.path, &body)?;
    if arguments.json {
        say!("{added:#}");
    } else {
        print::one(&added);
    }
    Ok(true)
}

fn remove(kind: Kind, arguments: &Remove, flag: Option<&str>) -> Result<bool, Error> {
    let mut query = match &arguments.id {
        Some(id) => subject::pair("id", id),
        None => arguments.chosen.query(),
    };
    if query.is_empty() {
        return Err("say whose: an id, or such as --user u1".into());
    }
    if let Some(flag) = flag {
        query += &subject::pair("flag", flag);
    }
    let target = format!("{}?{}", kind.path, query.trim_start_matches('&'));
    let answer = arguments.daemon.client()?.send(&Method::DELETE, &target)?;
    let removed = answer["removed"].as_u64().unwrap_or_default();
    if arguments.json {
        say!("{answer:#}");
    } else {
        print::removed(kind.one, removed);
    }
    Ok(removed > 0)
}
