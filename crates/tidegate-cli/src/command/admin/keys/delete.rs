//! `tidegate admin keys delete`

use std::io::{IsTerminal as _, Write as _, stdin, stdout};

use clap::Args;
use http::Method;
use serde_json::{Value, json};

use super::selection::Selection;
use super::{Daemon, KEYS};
use crate::command::Error;
use crate::command::admin::pages::{Pages, Parameters};
use crate::command::validate::plural;
use crate::{paint, say};

/// How many keys one call deletes.
const PAGE_KEYS: usize = 500;
/// How many names the question shows.
const SHOWN_MAX: usize = 20;

#[derive(Args)]
pub(in crate::command::admin) struct Delete {
    /// The key's name, as the list has it
    #[arg(conflicts_with = "Selection")]
    key: Option<String>,
    #[command(flatten)]
    daemon: Daemon,
    #[command(flatten)]
    selection: Selection,
    /// Only say what would be deleted
    #[arg(long)]
    dry_run: bool,
    /// Do not ask
    #[arg(long)]
    yes: bool,
}

/// The keys that a deletion selects.
struct Preview {
    count: usize,
    /// The first names.
    names: Vec<String>,
}

impl Delete {
    pub(super) fn run(&self) -> Result<bool, Error> {
        let parameters = self.selection.parameters_or_key(self.key.as_deref())?;
        let preview = self.preview(&parameters)?;
        if self.dry_run {
            self.print(&preview, None);
            return Ok(true);
        }
        if preview.count > 1 && !self.yes && !preview.confirm()? {
            say!("Nothing was deleted.");
            return Ok(false);
        }
        let mut deleted = 0;
        if preview.count > 0 {
            self.visit(&parameters, |page| {
                deleted += page["deleted"].as_u64().unwrap_or_default();
            })?;
        }
        self.print(&preview, Some(deleted));
        Ok(true)
    }

    fn preview(&self, parameters: &Parameters) -> Result<Preview, Error> {
        let mut parameters = parameters.clone();
        parameters.push(("dry_run".to_owned(), "true".to_owned()));
        let (mut count, mut names) = (0, Vec::new());
        self.visit(&parameters, |page| {
            let keys = page["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
            let room = SHOWN_MAX.saturating_sub(names.len());
            names.extend(keys.iter().filter_map(Value::as_str).take(room).map(paint::plain));
            count += keys.len();
        })?;
        Ok(Preview { count, names })
    }

    /// Sends the deletion, page by page.
    fn visit(&self, parameters: &Parameters, mut visit: impl FnMut(&Value)) -> Result<(), Error> {
        let (method, daemon) = (Method::DELETE, &self.daemon);
        Pages { kind: KEYS, method, parameters, daemon }.visit(
            &daemon.client()?,
            PAGE_KEYS,
            |page| {
                visit(page);
                true
            },
        )
    }

    /// Prints the result; `deleted` is `None` for a dry run.
    fn print(&self, preview: &Preview, deleted: Option<u64>) {
        let found = preview.count;
        match deleted {
            _ if self.daemon.json => {
                let (dry_run, deleted) = (deleted.is_none(), deleted.unwrap_or(0));
                say!("{:#}", json!({ "found": found, "deleted": deleted, "dry_run": dry_run }));
            }
            None => {
                preview.print();
                say!("would delete {found} {}", plural(found, "key"));
            }
            Some(deleted) => {
                let keys = plural(usize::try_from(deleted).unwrap_or(usize::MAX), "key");
                say!("deleted {deleted} {keys}");
            }
        }
    }
}

impl Preview {
    fn confirm(&self) -> Result<bool, Error> {
        let count = self.count;
        if !stdin().is_terminal() {
            let error =
                format!("this would delete {count} keys; say --yes, or look with --dry-run");
            return Err(error.into());
        }
        self.print();
        anstream::print!("Delete {count} {}? [y/N] ", plural(count, "key"));
        stdout().flush()?;
        let mut answer = String::new();
        stdin().read_line(&mut answer)?;
        Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
    }

    fn print(&self) {
        for name in &self.names {
            say!("  {name}");
        }
        if self.count > self.names.len() {
            let rest = self.count - self.names.len();
            say!("  {}", paint::faint(format!("and {rest} more")));
        }
    }
}
