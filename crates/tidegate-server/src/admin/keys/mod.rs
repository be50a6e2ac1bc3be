//! `GET` and `DELETE /admin/v1/keys`: the keys of the store and their usage.

mod key_query;
mod lookup;
mod view;

use std::sync::Arc;

use http::StatusCode;
use serde::Serialize;
use tidegate::StoreError;
use tidegate::engine::plan::LEVELS_MAX;
use utoipa::ToSchema;

use self::key_query::KeyQuery;
use self::lookup::{KeyEntry, find_page};
use self::view::KeyView;
use crate::admin::schemas;
use crate::app::App;
use crate::respond;
use crate::wire::endpoint::Answer;
use crate::wire::json::json_response;

/// A page of keys.
#[derive(Serialize, ToSchema)]
pub(crate) struct KeyList<'p> {
    #[schema(value_type = Vec<schemas::Key>)]
    keys: Vec<KeyView<'p>>,
    /// The cursor of the next page; null on the last.
    cursor: Option<&'p str>,
    /// How many keys were read for this page.
    seen: usize,
}

/// The keys that were deleted, or would be.
#[derive(Serialize, ToSchema)]
pub(crate) struct Deletion<'p> {
    keys: Vec<&'p str>,
    deleted: usize,
    dry_run: bool,
    /// The cursor of the next page; null on the last.
    cursor: Option<&'p str>,
    /// How many keys were read for this page.
    seen: usize,
}

/// Lists a page of keys.
pub(crate) async fn list(app: &App, query: &str) -> Answer {
    let page = find_page(app, &KeyQuery::parse(query, false)?).await?;
    let keys = page.entries.iter().map(KeyView::of).collect();
    Ok(json_response(&KeyList { keys, cursor: page.cursor.as_deref(), seen: page.seen }))
}

/// Deletes a page of keys.
pub(crate) async fn delete(app: &App, query: &str) -> Answer {
    let query = KeyQuery::parse(query, true)?;
    let page = find_page(app, &query).await?;
    let mut deleted = 0;
    if !query.dry_run {
        let result = forget_all(app, &page.entries, &mut deleted).await;
        log(&query, deleted, result.as_ref().err());
        if let Err(error) = result {
            let before = match deleted {
                0 => String::new(),
                _ => format!("; {deleted} keys were deleted before"),
            };
            let detail = format!("{error}{before}");
            return Err(respond::problem(StatusCode::SERVICE_UNAVAILABLE, &detail).into());
        }
    }
    Ok(json_response(&Deletion {
        keys: page.entries.iter().map(|entry| &*entry.name).collect(),
        deleted,
        dry_run: query.dry_run,
        cursor: page.cursor.as_deref(),
        seen: page.seen,
    }))
}

fn log(query: &KeyQuery<'_>, deleted: usize, error: Option<&StoreError>) {
    if deleted == 0 && error.is_none() {
        return;
    }
    let policy = query.request.policy.as_deref().unwrap_or_default();
    let limit = query.limit.as_deref().unwrap_or_default();
    let penalty = query.penalty.as_deref();
    let (by, error) = (query.selected_by.join(","), error.map(ToString::to_string));
    let message = "keys were deleted";
    tracing::info!(event = "keys_deleted", deleted, by, policy, limit, penalty, error, "{message}");
}

/// Forgets the keys, and counts in `deleted` those that are gone even if the store fails midway.
async fn forget_all(
    app: &App,
    entries: &[KeyEntry],
    deleted: &mut usize,
) -> Result<(), StoreError> {
    let readable: Vec<_> = entries.iter().filter_map(KeyEntry::to_forget).collect();
    for keys in readable.chunks(LEVELS_MAX) {
        let forgotten = app.engine.forget(keys).await?;
        *deleted += forgotten.iter().filter(|found| **found).count();
    }
    let unreadable = entries.iter().filter(|entry| entry.usage.is_err());
    let unreadable: Vec<Arc<str>> = unreadable.map(|entry| Arc::clone(&entry.name)).collect();
    if let Some(store) = app.engine.store().shared().filter(|_| !unreadable.is_empty()) {
        *deleted += usize::try_from(store.redis().delete(&unreadable).await?).unwrap_or(usize::MAX);
    }
    Ok(())
}
