//! `GET` and `DELETE /admin/v1/keys`: which keys the store has, what they hold, and away with them.

mod entry;
mod find;
mod query;
mod view;

use std::sync::Arc;

use http::header::CACHE_CONTROL;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use serde::Serialize;
use tidegate::RequestError;
use tidegate::plan::LEVELS_MAX;
use tidegate::store::StoreError;

use self::entry::Entry;
use self::find::Page;
use self::query::Query;
use crate::app::App;
use crate::body::Body;
use crate::respond;

/// Where it is.
pub(super) const PATH: &str = "/admin/v1/keys";

/// Answers a request for [`PATH`].
pub(super) async fn answer(app: &App, parts: &Parts) -> Response<Body> {
    let deletes = match parts.method {
        Method::GET | Method::HEAD => false,
        Method::DELETE => true,
        _ => return respond::wrong_method("GET, HEAD, DELETE"),
    };
    let answered = match Query::parse(parts.uri.query().unwrap_or_default(), deletes) {
        Ok(query) if deletes => delete(app, &query).await,
        Ok(query) => list(app, &query).await,
        Err(failure) => Err(failure),
    };
    let mut response = answered.unwrap_or_else(Failure::into_response);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[derive(Serialize)]
struct Listed<'p> {
    keys: Vec<view::Key<'p>>,
    cursor: Option<&'p str>,
    seen: usize,
}

#[derive(Serialize)]
struct Deleted<'p> {
    keys: Vec<&'p str>,
    deleted: usize,
    dry_run: bool,
    cursor: Option<&'p str>,
    seen: usize,
}

async fn list(app: &App, query: &Query<'_>) -> Result<Response<Body>, Failure> {
    let page = find::page(app, query).await?;
    let keys = page.entries.iter().map(view::Key::of).collect();
    Ok(json(&Listed { keys, cursor: page.cursor.as_deref(), seen: page.seen }))
}

async fn delete(app: &App, query: &Query<'_>) -> Result<Response<Body>, Failure> {
    let page = find::page(app, query).await?;
    let deleted = if query.dry_run { 0 } else { forget(app, query, &page).await? };
    Ok(json(&Deleted {
        keys: page.entries.iter().map(|entry| &*entry.name).collect(),
        deleted,
        dry_run: query.dry_run,
        cursor: page.cursor.as_deref(),
        seen: page.seen,
    }))
}

/// Deletes what was found, and logs how much of it went, also if not all of it did.
async fn forget(app: &App, query: &Query<'_>, page: &Page) -> Result<usize, Failure> {
    let mut deleted = 0;
    let done = forget_all(app, &page.entries, &mut deleted).await;
    if deleted > 0 || done.is_err() {
        let (policy, limit) = (query.request.policy.as_deref(), query.limit.as_deref());
        let error = done.as_ref().err().map(ToString::to_string);
        let by = query.by.join(",");
        let (policy, limit) = (policy.unwrap_or_default(), limit.unwrap_or_default());
        tracing::info!(
            event = "keys_deleted",
            deleted,
            by,
            policy,
            limit,
            error,
            "keys were deleted"
        );
    }
    done.map_err(|error| Failure::Store(error, deleted))?;
    Ok(deleted)
}

async fn forget_all(app: &App, entries: &[Entry], deleted: &mut usize) -> Result<(), StoreError> {
    let readable: Vec<_> = entries.iter().filter_map(Entry::to_forget).collect();
    for keys in readable.chunks(LEVELS_MAX) {
        let forgotten = app.engine.forget(keys).await?;
        *deleted += forgotten.iter().filter(|found| **found).count();
    }
    let broken: Vec<Arc<str>> = entries.iter().filter_map(Entry::to_delete).collect();
    if let Some(store) = app.engine.store().shared().filter(|_| !broken.is_empty()) {
        *deleted += usize::try_from(store.redis().delete(&broken).await?).unwrap_or(usize::MAX);
    }
    Ok(())
}

/// Why there is no page.
#[derive(Debug)]
enum Failure {
    /// What is wrong with the call.
    Request { field: String, detail: String },
    /// The store cannot be asked; how many keys were deleted before.
    Store(StoreError, usize),
}

impl Failure {
    fn of_field(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::Request { field: field.into(), detail: detail.into() }
    }

    fn into_response(self) -> Response<Body> {
        match self {
            Self::Request { field, detail } => respond::bad_request(&field, &detail),
            Self::Store(error, 0) => {
                respond::problem(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
            }
            Self::Store(error, deleted) => {
                let detail = format!("{error}; {deleted} keys were deleted before");
                respond::problem(StatusCode::SERVICE_UNAVAILABLE, &detail)
            }
        }
    }
}

impl From<RequestError> for Failure {
    fn from(RequestError { field, detail, .. }: RequestError) -> Self {
        Self::Request { field, detail }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Store(error, 0)
    }
}

fn json(value: &impl Serialize) -> Response<Body> {
    // Strings and numbers into memory: neither can fail.
    respond::json(serde_json::to_vec(value).unwrap_or_default())
}
