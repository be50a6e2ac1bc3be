//! `tidegate admin keys delete`

use std::io::{IsTerminal as _, Write as _, stdin, stdout};

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use super::pages::Pages;
use super::selection::Selection;
use super::{Client, Daemon};
use crate::command::Error;
use crate::command::validate::plural;
use crate::{paint, say};

/// How many keys go in one call: each page is done before the next is looked for.
const PAGE_KEYS: usize = 500;
/// How many names are shown before they go.
const SHOWN_MAX: usize = 20;

/// Forget what keys have counted: their subjects start afresh, on all nodes.
///
/// Asks before more than one key goes.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate admin keys delete --user u1 --dry-run\n  tidegate admin keys delete --limit login-ip --ip 192.0.2.1\n  tidegate admin keys delete --limit login-ip --yes"
)]
pub(super) struct Arguments {
    /// The key's name, as the list has it
    #[arg(conflicts_with = "Selection")]
    key: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Result<bool, Error> {
    if arguments.key.is_none() && arguments.selection.is_empty() {
        return Err("say which: a key, a limit or a subject, such as --user u1".into());
    }
    let query = arguments.selection.query(arguments.key.as_deref());
    let client = arguments.daemon.client()?;
    let work = Work { client: &client, query: &query, visible: !arguments.json };
    let (found, names) = work.found()?;
    if arguments.dry_run {
        tell(arguments, found, None, &names);
        return Ok(true);
    }
    if found > 1 && !arguments.yes && !confirmed(found, &names)? {
        say!("Nothing was deleted.");
        return Ok(false);
    }
    let deleted = if found == 0 { 0 } else { work.deleted()? };
    tell(arguments, found, Some(deleted), &names);
    Ok(true)
}

struct Work<'a> {
    client: &'a Client,
    query: &'a str,
    visible: bool,
}

impl Work<'_> {
    /// How many keys there are, and what the first ones are called.
    fn found(&self) -> Result<(usize, Vec<String>), Error> {
        let query = format!("{}&dry_run=true", self.query);
        let (mut found, mut names) = (0, Vec::new());
        self.pages(query, |page| {
            let keys = page["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
            let room = SHOWN_MAX.saturating_sub(names.len());
            names.extend(keys.iter().filter_map(Value::as_str).take(room).map(paint::plain));
            found += keys.len();
        })?;
        Ok((found, names))
    }

    fn deleted(&self) -> Result<u64, Error> {
        let mut deleted = 0;
        self.pages(self.query.to_owned(), |page| {
            deleted += page["deleted"].as_u64().unwrap_or_default();
        })?;
        Ok(deleted)
    }

    fn pages(&self, query: String, mut take: impl FnMut(&Value)) -> Result<(), Error> {
        let pages = Pages::new(self.client, Method::DELETE, query, self.visible);
        pages.each(PAGE_KEYS, |page| {
            take(page);
            true
        })?;
        Ok(())
    }
}

fn confirmed(found: usize, names: &[String]) -> Result<bool, Error> {
    if !stdin().is_terminal() {
        return Err(
            format!("this would delete {found} keys; say --yes, or look with --dry-run").into()
        );
    }
    show(found, names);
    anstream::print!("Delete {found} {}? [y/N] ", plural(found, "key"));
    stdout().flush()?;
    let mut answer = String::new();
    stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

fn show(found: usize, names: &[String]) {
    for name in names {
        say!("  {name}");
    }
    if found > names.len() {
        say!("  {}", paint::faint(format!("and {} more", found - names.len())));
    }
}

fn tell(arguments: &Arguments, found: usize, deleted: Option<u64>, names: &[String]) {
    if arguments.json {
        let dry_run = deleted.is_none();
        say!(
            "{:#}",
            json!({ "found": found, "deleted": deleted.unwrap_or(0), "dry_run": dry_run })
        );
        return;
    }
    match deleted {
        None => {
            show(found, names);
            say!("would delete {found} {}", plural(found, "key"));
        }
        Some(deleted) => {
            let keys = plural(usize::try_from(deleted).unwrap_or(usize::MAX), "key");
            say!("deleted {deleted} {keys}");
        }
    }
}
