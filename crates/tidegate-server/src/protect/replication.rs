//! Replication: nodes that share a store tell each other their marks and their load.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::clock::{Now, micros};
use tidegate::engine::marks::{Mark, MarkChange, MarkKind, MarkSink};
use tidegate_redis::{
    MarkChange as PublishedChange, MarkOperation, MarkReplica, RedisStore, ReplicatedMark,
};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::app::App;
use crate::shared::SharedStore;

/// How long the start waits for the marks of other nodes. Then it goes on without them.
const LOAD_WAIT: Duration = Duration::from_secs(2);

/// The time between two looks whether this node has the shared secret.
const SECRET_CHECK: Duration = Duration::from_millis(50);

/// The number of marks in a page.
const PAGE: usize = 1_000;

/// Starts replication, and waits a while until the marks of all other nodes are here. A node without the
/// shared secret would give the same mark another id. So it waits for the secret first, and then publishes
/// the marks that it has made until then.
pub(crate) async fn start(app: &Arc<App>) {
    let Some(store) = app.engine.store().shared() else { return };
    if store.lacks_secret() {
        tokio::spawn(start_with_secret(Arc::downgrade(app), app.now().unix_us));
        return;
    }
    let mut is_complete = replicate(app, store, None);
    let completed = async { is_complete.wait_for(|complete| *complete).await.is_ok() };
    if !store.is_lost() && !tokio::time::timeout(LOAD_WAIT, completed).await.unwrap_or_default() {
        tracing::warn!(
            event = "marks_late",
            "the bans and flags of other nodes are not all known yet: they are still being loaded"
        );
    }
}

async fn start_with_secret(app: Weak<App>, since_unix_us: u64) {
    while let Some(app) = app.upgrade() {
        match app.engine.store().shared() {
            Some(store) if !store.lacks_secret() => {
                replicate(&app, store, Some(since_unix_us));
                return;
            }
            _ => {
                drop(app);
                sleep(SECRET_CHECK).await;
            }
        }
    }
}

/// Publishes the marks that this node has made since a time, before it applies any change: an earlier
/// removal of such a mark must not remove it. Another node may have removed an older mark since.
fn publish_since(app: &Arc<App>, store: &SharedStore, since_unix_us: u64) {
    let now = app.now();
    for mark in app.engine.marks().export(now) {
        if mark.since_unix_us >= since_unix_us {
            let lasts = mark.time_left(now);
            store.redis().publish_mark(PublishedChange {
                operation: MarkOperation::SetIfLonger,
                ..published_set(&mark, lasts)
            });
        }
    }
}

fn replicate(
    app: &Arc<App>,
    store: &SharedStore,
    marked_since: Option<u64>,
) -> watch::Receiver<bool> {
    app.engine.marks().set_sink(Arc::new(MarkPublisher { redis: store.redis().clone() }));
    if let Some(since_unix_us) = marked_since {
        publish_since(app, store, since_unix_us);
    }
    store.redis().replicate_marks(Arc::new(LocalReplica { app: Arc::downgrade(app) }))
}

/// Publishes what this node changes.
struct MarkPublisher {
    redis: RedisStore,
}

impl MarkSink for MarkPublisher {
    fn changed(&self, change: &MarkChange) {
        let published = match change {
            MarkChange::Set(mark) => published_set(mark, whole_duration(mark)),
            MarkChange::Removed { id, .. } => PublishedChange {
                id: id.0,
                operation: MarkOperation::Remove,
                value: encode(change),
                lasts: None,
            },
        };
        self.redis.publish_mark(published);
    }
}

/// The marks and the load of this node.
struct LocalReplica {
    /// Weak, since the app owns the store.
    app: Weak<App>,
}

impl MarkReplica for LocalReplica {
    fn apply(&self, changes: Vec<ReplicatedMark>) {
        let Some(app) = self.app.upgrade() else { return };
        let now = app.now();
        for ReplicatedMark { value, lasts, .. } in changes {
            // Another release may write what this one cannot read.
            let Ok(mut change) = serde_json::from_slice::<MarkChange>(&value) else { continue };
            if let MarkChange::Set(mark) = &mut change {
                adjust_times(mark, lasts, now);
            }
            app.engine.marks().apply(&change, now);
        }
    }

    fn marks(&self) -> Box<dyn Iterator<Item = PublishedChange> + Send + '_> {
        let Some(app) = self.app.upgrade() else { return Box::new(std::iter::empty()) };
        let kinds = [MarkKind::Ban, MarkKind::Flag, MarkKind::Factor];
        Box::new(kinds.into_iter().flat_map(move |kind| MarkPages::new(Arc::clone(&app), kind)))
    }

    fn own_load_ppm(&self) -> Option<u64> {
        self.app.upgrade().map(|app| app.load.own_ppm())
    }

    fn apply_load(&self, ppm: u64) {
        if let Some(app) = self.app.upgrade() {
            app.engine.set_load(ppm.max(app.load.own_ppm()));
        }
    }
}

/// All marks of a kind, page by page.
struct MarkPages {
    app: Arc<App>,
    kind: MarkKind,
    page: std::vec::IntoIter<Mark>,
    last: Option<tidegate::engine::Key>,
}

impl MarkPages {
    fn new(app: Arc<App>, kind: MarkKind) -> Self {
        let page = app.engine.marks().list(kind, None, PAGE, app.now()).into_iter();
        Self { app, kind, page, last: None }
    }
}

impl Iterator for MarkPages {
    type Item = PublishedChange;

    fn next(&mut self) -> Option<PublishedChange> {
        if self.page.len() == 0 && self.last.is_some() {
            let marks = self.app.engine.marks();
            self.page = marks.list(self.kind, self.last, PAGE, self.app.now()).into_iter();
        }
        let mark = self.page.next()?;
        self.last = Some(mark.id);
        let lasts = mark.time_left(self.app.now());
        Some(published_set(&mark, lasts))
    }
}

fn published_set(mark: &Mark, lasts: Option<Duration>) -> PublishedChange {
    // The engine keeps the ban that ends later, and the newest factor; so does the store.
    let operation =
        if mark.kind == MarkKind::Factor { MarkOperation::Set } else { MarkOperation::SetIfLonger };
    PublishedChange {
        id: mark.id.0,
        operation,
        value: encode(&MarkChange::Set(mark.clone())),
        lasts,
    }
}

/// The whole time for which a mark was set.
fn whole_duration(mark: &Mark) -> Option<Duration> {
    let until_us = mark.until_unix_us?;
    Some(Duration::from_micros(until_us.saturating_sub(mark.since_unix_us)))
}

/// Sets the times of a mark that another node has set. The store's clock, which all nodes share, says how
/// long the mark still lasts. Its age is the whole duration less that. A mark without an end keeps the
/// beginning that the other node's clock has given it.
fn adjust_times(mark: &mut Mark, lasts: Option<Duration>, now: Now) {
    if let (Some(whole), Some(left)) = (whole_duration(mark), lasts) {
        let age_us = micros(whole).saturating_sub(micros(left));
        mark.since_unix_us = now.unix_us.saturating_sub(age_us);
    }
    mark.until_unix_us = lasts.map(|left| now.unix_us.saturating_add(micros(left)));
}

fn encode(change: &MarkChange) -> Vec<u8> {
    // Strings and numbers into memory: neither can fail.
    serde_json::to_vec(change).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use tidegate::{NewMark, Policy, Subject};

    use super::*;
    use crate::shared::tests::{TestRedis, eventually};

    #[tokio::test]
    async fn a_mark_made_before_the_secret_was_known_outlives_an_earlier_removal() {
        let redis = TestRedis::start();
        let policy = "{tidegate: 1, name: api}";
        let other = Arc::new(redis.node_with(policy).await);
        start(&other).await;
        let removed = other.engine.ban(&NewMark::new(Subject::user("u1"))).unwrap();
        assert!(other.engine.unmark(MarkKind::Ban, removed.id));
        let stored = || {
            let id = format!("{:032x}", removed.id.0);
            let value = redis.command(&["HGET", "tg:@marks:values", &id]);
            value.text().chars().next()
        };
        eventually(async || stored() == Some('r')).await;

        let node = Arc::new(redis.stranger(policy).await);
        start(&node).await;
        node.engine.ban(&NewMark::new(Subject::user("u1"))).unwrap();
        redis.learn_secret(&node).await;
        eventually(async || stored() == Some('s')).await;
        for node in [&node, &other] {
            let ids = || node.engine.marks().export(node.now()).into_iter().map(|mark| mark.id);
            eventually(async || ids().eq([removed.id])).await;
        }
    }

    #[test]
    fn a_mark_is_as_old_as_the_store_says_whatever_the_clock_of_its_node_said() {
        let now = Now { unix_us: 1_000_000_000_000, steady_us: 5 };
        for sender_us in [7_000_000, 900_000_000_000, 9_000_000_000_000] {
            let app = App::new(Policy::parse("a.yaml", "{ tidegate: 1, name: a }").unwrap());
            let mut mark = app.engine.ban(&NewMark::new(Subject::user("u1"))).unwrap();
            mark.since_unix_us = sender_us;
            mark.until_unix_us = Some(sender_us + 60_000_000);
            adjust_times(&mut mark, Some(Duration::from_secs(40)), now);
            assert_eq!(now.unix_us - mark.since_unix_us, 20_000_000);
            assert_eq!(mark.until_unix_us, Some(now.unix_us + 40_000_000));
        }
    }
}
