//! `GET`, `POST` and `DELETE` of `/admin/v1/bans` and `/admin/v1/flags`.

mod mark_query;
mod new_mark;

use serde::Serialize;
use serde_json::{Map, Value};
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::marks::{Mark, MarkKind};
use utoipa::ToSchema;

use self::mark_query::MarkQuery;
use self::new_mark::parse_new_mark;
use crate::app::App;
use crate::auth::Actor;
use crate::telemetry::timestamp;
use crate::wire::endpoint::{Answer, Call};
use crate::wire::json::json_response;
use crate::wire::json::millis_up;

/// How many marks are read at once.
const STEP: usize = 1_000;
/// How many steps make one page; further marks are on the next.
const STEPS_MAX: usize = if cfg!(test) { 2 } else { 250 };

#[derive(Serialize)]
struct MarkList<'m> {
    #[serde(skip_serializing_if = "Option::is_none")]
    bans: Option<Vec<MarkView<'m>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flags: Option<Vec<MarkView<'m>>>,
    cursor: Option<String>,
}

/// How many marks were removed.
#[derive(Serialize, ToSchema)]
pub(crate) struct Removal {
    removed: usize,
}

/// A mark as JSON.
#[derive(Serialize, ToSchema)]
#[schema(as = Mark)]
pub(crate) struct MarkView<'m> {
    id: String,
    /// The parts of the subject.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    key: Map<String, Value>,
    /// The policy of the mark; `None` for all policies.
    policy: Option<&'m str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flag: Option<&'m str>,
    /// The penalty or ratio that set the mark, or `operator`.
    source: &'m str,
    reason: &'m str,
    since: String,
    until: Option<String>,
    left_ms: Option<u64>,
}

impl<'m> MarkView<'m> {
    fn of(mark: &'m Mark, now: Now) -> Self {
        let part = |(name, value): (&str, &str)| (name.to_owned(), Value::from(value));
        Self {
            id: format!("{:032x}", mark.id.0),
            key: mark.subject.parts().map(part).collect(),
            policy: mark.policy.as_deref(),
            flag: mark.flag.as_deref(),
            source: &mark.source,
            reason: &mark.reason,
            since: timestamp(mark.since_unix_us),
            until: mark.until_unix_us.map(timestamp),
            left_ms: mark.time_left(now).map(millis_up),
        }
    }
}

/// Lists a page of marks.
pub(crate) fn list(call: &Call<'_>, kind: MarkKind) -> Answer {
    let query = MarkQuery::parse(call.query(), kind, false, &call.app.engine)?;
    let (marks, next) = find(call.app, kind, &query);
    let now = call.app.now();
    let views = Some(marks.iter().map(|mark| MarkView::of(mark, now)).collect());
    let cursor = next.map(|last| format!("{:032x}", last.0));
    let (bans, flags) = if kind == MarkKind::Flag { (None, views) } else { (views, None) };
    Ok(json_response(&MarkList { bans, flags, cursor }))
}

/// Sets a mark.
pub(crate) fn add(call: &Call<'_>, kind: MarkKind) -> Answer {
    let app = call.app;
    let (new_mark, flag) = parse_new_mark(&call.body, kind)?;
    let mark = match flag {
        Some(flag) => app.engine.flag(&flag, &new_mark)?,
        None => app.engine.ban(&new_mark)?,
    };
    app.marked(&mark, &call.actor);
    Ok(json_response(&MarkView::of(&mark, app.now())))
}

/// Removes the marks that the query selects, on all pages.
pub(crate) async fn remove(call: &Call<'_>, kind: MarkKind) -> Answer {
    let query = MarkQuery::parse(call.query(), kind, true, &call.app.engine)?;
    let removed = remove_all(call.app, kind, &call.actor, query).await;
    Ok(json_response(&Removal { removed }))
}

async fn remove_all(app: &App, kind: MarkKind, actor: &Actor, mut query: MarkQuery) -> usize {
    let mut removed = 0;
    loop {
        let (marks, next) = find(app, kind, &query);
        for mark in &marks {
            if app.engine.unmark(kind, mark.id) {
                app.unmarked(mark, actor);
                removed += 1;
            }
        }
        if next.is_none() {
            return removed;
        }
        query.cursor = next;
        // There may be a million marks, and other tasks need this thread.
        tokio::task::yield_now().await;
    }
}

/// A page of the marks that the query selects, and the last mark read if there are more.
fn find(app: &App, kind: MarkKind, query: &MarkQuery) -> (Vec<Mark>, Option<Key>) {
    let (marks, now) = (app.engine.marks(), app.now());
    if let Some(id) = query.id {
        let mark = marks.get(kind, id, now).filter(|mark| query.selects(mark));
        return (mark.into_iter().collect(), None);
    }
    let (mut found, mut last) = (Vec::new(), query.cursor);
    // One mark beyond the page shows that there are more.
    let step = if query.is_selective() { STEP } else { query.count.saturating_add(1) };
    for _ in 0..STEPS_MAX {
        let page = marks.list(kind, last, step, now);
        let is_last = page.len() < step;
        for mark in page {
            let is_selected = query.selects(&mark);
            if is_selected && found.len() == query.count {
                return (found, last);
            }
            last = Some(mark.id);
            if is_selected {
                found.push(mark);
            }
        }
        if is_last {
            return (found, None);
        }
    }
    (found, last)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidegate::engine::marks::Subject;
    use tidegate::{NewMark, Policy};

    use super::*;

    fn actor() -> Actor {
        Actor { holder: None, peer: [127, 0, 0, 1].into() }
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
        let query = MarkQuery::parse(&query, MarkKind::Ban, true, &app.engine).unwrap();
        assert_eq!(remove_all(&app, MarkKind::Ban, &actor(), query).await, 1);
        assert!(app.engine.marks().get(MarkKind::Ban, last.id, app.now()).is_none());
    }

    #[test]
    fn a_cursor_says_that_there_are_more_and_only_then() {
        let app = App::new(Policy::parse("a.yaml", "{ tidegate: 1, name: a }").unwrap());
        for user in ["u1", "u2", "u3"] {
            for flag in ["review", "fraud"] {
                app.engine.flag(flag, &NewMark::new(Subject::user(user))).unwrap();
            }
        }
        let page = |text: &str| {
            let query = MarkQuery::parse(text, MarkKind::Flag, false, &app.engine).unwrap();
            let (found, next) = find(&app, MarkKind::Flag, &query);
            (found.len(), next.is_some())
        };
        for (text, expected) in [
            ("count=5", (5, true)),
            ("count=6", (6, false)),
            ("count=7", (6, false)),
            ("count=1&flag=fraud&user=u2", (1, false)),
            ("count=1&user=u2", (1, true)),
            ("count=2&user=u2", (2, false)),
        ] {
            assert_eq!(page(text), expected, "{text}");
        }
    }

    #[tokio::test]
    async fn an_id_is_meant_only_with_what_else_is_asked_for() {
        let app = App::new(Policy::parse("a.yaml", "{ tidegate: 1, name: a }").unwrap());
        let order = NewMark::new(Subject::user("u1")).lasts(Duration::from_secs(3_600));
        let id = app.engine.ban(&order).unwrap().id;
        for (user, removed) in [("u2", 0), ("u1", 1)] {
            let query = format!("id={:032x}&user={user}", id.0);
            let query = MarkQuery::parse(&query, MarkKind::Ban, true, &app.engine).unwrap();
            assert_eq!(remove_all(&app, MarkKind::Ban, &actor(), query).await, removed, "{user}");
        }
    }
}
