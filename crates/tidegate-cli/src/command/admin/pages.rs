//! Lists of the admin API, page by page, with a progress bar.

use std::collections::HashSet;

use form_urlencoded::Serializer;
use http::Method;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::{Client, Daemon};
use crate::command::Error;
use crate::command::validate::plural;
use crate::{paint, say};

/// How many items one page has at most.
const PAGE_MAX: usize = 1_000;

/// Parameters of a query string.
pub(super) type Parameters = Vec<(String, String)>;

/// A path with its query string.
pub(super) fn target(path: &str, parameters: &[(String, String)]) -> String {
    format!("{path}?{}", Serializer::new(String::new()).extend_pairs(parameters).finish())
}

/// A list of the admin API.
#[derive(Clone, Copy)]
pub(super) struct ListKind {
    pub(super) path: &'static str,
    /// The member of the answer that has the items.
    pub(super) member: &'static str,
    /// The member of an item that identifies it.
    pub(super) id: &'static str,
    pub(super) noun: &'static str,
}

/// The items that a list command shows.
pub(super) struct Items {
    pub(super) items: Vec<Value>,
    /// True if the daemon has more of them.
    pub(super) more: bool,
}

impl ListKind {
    /// Fetches at most `count` items, each once.
    pub(super) fn fetch(
        self,
        daemon: &Daemon,
        parameters: &Parameters,
        count: usize,
    ) -> Result<Items, Error> {
        let (mut items, mut ids) = (Vec::new(), HashSet::new());
        let pages = Pages { kind: self, method: Method::GET, parameters, daemon };
        // One item beyond those that are shown tells that there are more.
        let page_count = count.saturating_add(1).min(PAGE_MAX);
        pages.visit(&daemon.client()?, page_count, |page| {
            for item in page[self.member].as_array().into_iter().flatten() {
                if ids.insert(item[self.id].to_string()) {
                    items.push(item.clone());
                }
            }
            items.len() <= count
        })?;
        let more = items.len() > count;
        items.truncate(count);
        Ok(Items { items, more })
    }

    /// Prints items as JSON.
    pub(super) fn print_json(self, items: &Items) {
        let member = self.member;
        say!("{:#}", json!({ member: items.items, "more": items.more }));
    }

    /// Prints how many items there are.
    pub(super) fn print_total(self, items: &Items) {
        let count = items.items.len();
        let more = if items.more { ", and there are more" } else { "" };
        say!("{}", paint::faint(format!("{count} {}{more}", plural(count, self.noun))));
    }
}

/// The pages of a call.
pub(super) struct Pages<'a> {
    pub(super) kind: ListKind,
    pub(super) method: Method,
    pub(super) parameters: &'a Parameters,
    pub(super) daemon: &'a Daemon,
}

impl Pages<'_> {
    /// Visits page after page until `visit` returns false, or there are no more.
    pub(super) fn visit(
        &self,
        client: &Client,
        count: usize,
        mut visit: impl FnMut(&Value) -> bool,
    ) -> Result<(), Error> {
        let bar = if self.daemon.json { ProgressBar::hidden() } else { ProgressBar::new_spinner() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        let mut parameters = self.parameters.clone();
        parameters.push(("count".to_owned(), count.to_string()));
        let mut seen = 0;
        loop {
            let page = client.send(&self.method, &target(self.kind.path, &parameters))?;
            let goes_on = visit(&page);
            seen += page["seen"].as_u64().unwrap_or_default();
            if seen > 0 {
                bar.set_message(format!("{seen} keys gone through"));
                bar.tick();
            }
            let cursor = page["cursor"].as_str();
            if cursor.is_none() || !goes_on {
                bar.finish_and_clear();
                return Ok(());
            }
            parameters.retain(|(name, _)| name != "cursor");
            parameters.extend(cursor.map(|cursor| ("cursor".to_owned(), cursor.to_owned())));
        }
    }
}
