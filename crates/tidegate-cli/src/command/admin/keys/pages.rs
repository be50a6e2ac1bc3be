//! Pages of keys, one after the other, and a bar that says how far they are.

use std::collections::HashSet;

use http::Method;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::Client;
use crate::command::Error;

const PATH: &str = "/admin/v1/keys";
/// How many keys are asked for at once.
const PAGE_KEYS: usize = 1_000;

/// All pages of a call.
pub(super) struct Pages<'c> {
    client: &'c Client,
    method: Method,
    query: String,
    bar: ProgressBar,
}

impl<'c> Pages<'c> {
    pub(super) fn new(client: &'c Client, method: Method, query: String, visible: bool) -> Self {
        let bar = if visible { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}") {
            bar.set_style(style);
        }
        Self { client, method, query, bar }
    }

    /// The keys, each once and at most so many, and whether there may be more.
    pub(super) fn keys(&self, count: usize) -> Result<(Vec<Value>, bool), Error> {
        let (mut keys, mut known) = (Vec::new(), HashSet::new());
        let more = self.each(count.min(PAGE_KEYS), |page| {
            for key in page["keys"].as_array().into_iter().flatten() {
                if known.insert(key["key"].to_string()) {
                    keys.push(key.clone());
                }
            }
            keys.len() < count
        })?;
        let left_out = keys.len() > count;
        keys.truncate(count);
        Ok((keys, more || left_out))
    }

    /// Hands out page after page until `go_on` says no; returns whether there are more.
    pub(super) fn each(
        &self,
        count: usize,
        mut go_on: impl FnMut(&Value) -> bool,
    ) -> Result<bool, Error> {
        let (mut cursor, mut seen) = (None, 0);
        loop {
            let page = self.client.send(&self.method, &self.target(count, cursor.as_deref()))?;
            let goes_on = go_on(&page);
            seen += page["seen"].as_u64().unwrap_or_default();
            self.bar.set_message(format!("{seen} keys gone through"));
            self.bar.tick();
            cursor = page["cursor"].as_str().map(str::to_owned);
            if cursor.is_none() || !goes_on {
                self.bar.finish_and_clear();
                return Ok(cursor.is_some());
            }
        }
    }

    fn target(&self, count: usize, cursor: Option<&str>) -> String {
        let mut target = format!("{PATH}?count={count}");
        if !self.query.is_empty() {
            target = format!("{target}&{}", self.query);
        }
        match cursor {
            Some(cursor) => format!("{target}&cursor={cursor}"),
            None => target,
        }
    }
}
