//! `GET`, `POST` and `DELETE` of `/admin/v1/bans` and `/admin/v1/flags`: who is refused whatever they
//! ask for, and who is to be looked at.

mod order;
mod query;
mod view;

use std::time::Duration;

use http::header::CACHE_CONTROL;
use http::request::Parts;
use http::{HeaderValue, Method, Response, StatusCode};
use hyper::body::Incoming;
use serde::Serialize;
use tidegate::Key;
use tidegate::marks::{Mark, MarkKind};

use crate::admin::Caller;
use crate::app::App;
use crate::body::Body;
use crate::respond;
use crate::wire::api::fields::FieldError;
use crate::wire::api::{Failure, read};
use order::Ordered;
use query::Query;
use view::Shown;

/// Where they are.
const PATHS: [(&str, MarkKind); 2] =
    [("/admin/v1/bans", MarkKind::Ban), ("/admin/v1/flags", MarkKind::Flag)];
/// The longest body of a call.
const BODY_BYTES_MAX: usize = 16 * 1024;
/// For how long a body is waited for.
const BODY_WAIT: Duration = Duration::from_secs(10);
/// How many marks are gone through at once.
const STEP: usize = 1_000;
/// How many of these steps are made for one page: further marks are on the next.
const STEPS_MAX: usize = if cfg!(test) { 2 } else { 250 };

/// The marks that are at this path, if any are.
pub(super) fn at(path: &str) -> Option<MarkKind> {
    PATHS.iter().find(|(known, _)| *known == path).map(|(_, kind)| *kind)
}

/// Answers a request for the marks of a kind.
pub(super) async fn answer(
    app: &App,
    kind: MarkKind,
    caller: Caller,
    parts: &Parts,
    body: Incoming,
) -> Response<Body> {
    let text = parts.uri.query().unwrap_or_default();
    let answered = match parts.method {
        Method::GET | Method::HEAD => list(app, kind, text),
        Method::POST => add(app, kind, &caller, body).await,
        Method::DELETE => remove(app, kind, &caller, text).await,
        _ => Ok(respond::wrong_method("GET, HEAD, POST, DELETE")),
    };
    let mut response = answered.unwrap_or_else(|Failure(response)| *response);
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[derive(Serialize)]
struct Listed<'m> {
    #[serde(skip_serializing_if = "Option::is_none")]
    bans: Option<Vec<Shown<'m>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<Vec<Shown<'m>>>,
    cursor: Option<String>,
}

#[derive(Serialize)]
struct Removed {
    removed: usize,
}

fn list(app: &App, kind: MarkKind, text: &str) -> Result<Response<Body>, Failure> {
    let query = Query::parse(text, kind, false)?.spelled(&app.engine);
    let (marks, more) = find(app, kind, &query);
    let now = app.now();
    let shown = Some(marks.iter().map(|mark| Shown::of(mark, now)).collect());
    let cursor = more.map(|last| format!("{:032x}", last.0));
    Ok(json(
        StatusCode::OK,
        &match kind {
            MarkKind::Flag => Listed { bans: None, flags: shown, cursor },
            MarkKind::Ban | MarkKind::Factor => Listed { bans: shown, flags: None, cursor },
        },
    ))
}

async fn add(
    app: &App,
    kind: MarkKind,
    caller: &Caller,
    body: Incoming,
) -> Result<Response<Body>, Failure> {
    let text = read(body, BODY_BYTES_MAX, BODY_WAIT).await?;
    let Ordered { order, flag } = Ordered::parse(&text, kind)?;
    let mark = match flag {
        Some(flag) => app.engine.flag(&flag, &order),
        None => app.engine.ban(&order),
    };
    let mark = mark.map_err(FieldError::from)?;
    app.marked(&mark, caller);
    Ok(json(StatusCode::OK, &Shown::of(&mark, app.now())))
}

async fn remove(
    app: &App,
    kind: MarkKind,
    caller: &Caller,
    text: &str,
) -> Result<Response<Body>, Failure> {
    let query = Query::parse(text, kind, true)?.spelled(&app.engine);
    let removed = remove_all(app, kind, caller, query).await;
    Ok(json(StatusCode::OK, &Removed { removed }))
}

/// Takes away whatever is asked for; how many there were.
async fn remove_all(app: &App, kind: MarkKind, caller: &Caller, mut query: Query) -> usize {
    let mut removed = 0;
    loop {
        let (marks, more) = find(app, kind, &query);
        for mark in &marks {
            if app.engine.unmark(kind, mark.id) {
                app.unmarked(mark, caller);
                removed += 1;
            }
        }
        if more.is_none() {
            return removed;
        }
        query.cursor = more;
        // There may be a million of them, and others have work.
        tokio::task::yield_now().await;
    }
}

/// The marks that are asked for, and behind which there are more.
fn find(app: &App, kind: MarkKind, query: &Query) -> (Vec<Mark>, Option<Key>) {
    let (known, now) = (app.engine.marks(), app.now());
    if let Some(id) = query.id {
        let found = known.get(kind, id, now).filter(|mark| query.fits(mark));
        return (found.into_iter().collect(), None);
    }
    let (mut found, mut last) = (Vec::new(), query.cursor);
    for _ in 0..STEPS_MAX {
        let step = if query.chooses() { STEP } else { query.count - found.len() };
        let page = known.list(kind, last, step, now);
        let is_last = page.len() < step;
        for mark in page {
            if found.len() == query.count {
                return (found, last);
            }
            last = Some(mark.id);
            if query.fits(&mark) {
                found.push(mark);
            }
        }
        if is_last {
            return (found, None);
        }
        if found.len() == query.count {
            break;
        }
    }
    (found, last)
}

fn json(status: StatusCode, value: &impl Serialize) -> Response<Body> {
    // Strings and numbers into memory: neither can fail.
    let text = serde_json::to_vec(value).unwrap_or_default();
    respond::with_type(status, "application/json", text)
}

#[cfg(test)]
mod tests {
    use tidegate::marks::Subject;
    use tidegate::{NewMark, Policy};

    use super::*;

    fn caller() -> Caller {
        Caller { holder: None, peer: [127, 0, 0, 1].into() }
    }

    #[tokio::test]
    async fn what_is_taken_away_is_looked_for_among_all_marks() {
        let app = App::new(Policy::parse("a.yaml", "{ tidegate: 1, name: a }").unwrap());
        let lasts = Duration::from_secs(3_600);
        for user in 0..=STEP * STEPS_MAX + 10 {
            app.engine.ban(&NewMark::new(Subject::user(user.to_string())).lasts(lasts)).unwrap();
        }
        let bans = app.engine.marks().list(MarkKind::Ban, None, usize::MAX, app.now());
        let last = bans.last().unwrap();
        let query = format!("user={}", last.subject.parts().next().unwrap().1);
        let query = Query::parse(&query, MarkKind::Ban, true).unwrap().spelled(&app.engine);
        assert_eq!(remove_all(&app, MarkKind::Ban, &caller(), query).await, 1);
        assert!(app.engine.marks().get(MarkKind::Ban, last.id, app.now()).is_none());
    }

    #[tokio::test]
    async fn an_id_is_meant_only_with_what_else_is_asked_for() {
        let app = App::new(Policy::parse("a.yaml", "{ tidegate: 1, name: a }").unwrap());
        let order = NewMark::new(Subject::user("u1")).lasts(Duration::from_secs(3_600));
        let id = app.engine.ban(&order).unwrap().id;
        for (user, removed) in [("u2", 0), ("u1", 1)] {
            let query = format!("id={:032x}&user={user}", id.0);
            let query = Query::parse(&query, MarkKind::Ban, true).unwrap().spelled(&app.engine);
            assert_eq!(remove_all(&app, MarkKind::Ban, &caller(), query).await, removed, "{user}");
        }
    }
}
