//! Marks that nodes tell each other through the store that they share, and the load with them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate::clock::Now;
use tidegate::marks::{Mark, MarkChange, MarkKind, MarkSink};
use tidegate_redis::{MarkChange as Told, MarkOperation, MarkReplica, RedisStore, ReplicatedMark};
use tokio::sync::watch;
use tokio::time::sleep;

use crate::app::App;
use crate::shared::SharedStore;

/// How long the start waits for what the others know. It goes on without.
const LOAD_WAIT: Duration = Duration::from_secs(2);

/// How soon it is looked again whether the secret of all nodes is known.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// How many marks are looked up at once.
const PAGE: usize = 1_000;

/// Shares the marks of this node with all others, and waits a while until it knows what they do. A
/// node that does not know the secret of all would call the same mark otherwise, and waits for that
/// first; what it marks until then it says anew.
pub(crate) async fn share(app: &Arc<App>) {
    let Some(store) = app.engine.store().shared() else { return };
    if store.lacks_secret() {
        tokio::spawn(share_later(Arc::downgrade(app), app.now().unix_us));
        return;
    }
    let mut whole = begin(app, store, None);
    let known = async { whole.wait_for(|whole| *whole).await.is_ok() };
    if !store.is_lost() && !tokio::time::timeout(LOAD_WAIT, known).await.unwrap_or_default() {
        tracing::warn!(
            event = "marks_late",
            "the bans and flags of other nodes are not all known yet: they are still being loaded"
        );
    }
}

async fn share_later(app: Weak<App>, since_unix_us: u64) {
    while let Some(app) = app.upgrade() {
        match app.engine.store().shared() {
            Some(store) if !store.lacks_secret() => {
                begin(&app, store, Some(since_unix_us));
                return;
            }
            _ => {
                drop(app);
                sleep(LOOK_AGAIN).await;
            }
        }
    }
}

/// Tells of what this node has marked since a time, before it hears of anything: that somebody removed
/// such a mark earlier must not take it away. What it knows from before may have been removed since.
fn tell_since(app: &Arc<App>, store: &SharedStore, since_unix_us: u64) {
    let now = app.now();
    for mark in app.engine.marks().export(now) {
        if mark.since_unix_us >= since_unix_us {
            let lasts = mark.left_us(now).map(Duration::from_micros);
            store
                .redis()
                .publish_mark(Told { operation: MarkOperation::SetIfLonger, ..set(&mark, lasts) });
        }
    }
}

fn begin(app: &Arc<App>, store: &SharedStore, marked_since: Option<u64>) -> watch::Receiver<bool> {
    app.engine.marks().set_sink(Arc::new(Teller { redis: store.redis().clone() }));
    if let Some(since_unix_us) = marked_since {
        tell_since(app, store, since_unix_us);
    }
    store.redis().replicate_marks(Arc::new(Node { app: Arc::downgrade(app) }))
}

/// Tells the others of what this node changes.
struct Teller {
    redis: RedisStore,
}

impl MarkSink for Teller {
    fn changed(&self, change: &MarkChange) {
        let told = match change {
            MarkChange::Set(mark) => set(mark, lasts(mark)),
            MarkChange::Removed { id, .. } => Told {
                id: id.0,
                operation: MarkOperation::Remove,
                value: written(change),
                lasts: None,
            },
        };
        self.redis.publish_mark(told);
    }
}

/// What this node knows, as the others hear it.
struct Node {
    /// Weak, as the store lives in it.
    app: Weak<App>,
}

impl MarkReplica for Node {
    fn apply(&self, changes: Vec<ReplicatedMark>) {
        let Some(app) = self.app.upgrade() else { return };
        let now = app.now();
        for ReplicatedMark { value, lasts, .. } in changes {
            // What another release wrote may be of no use to this one.
            let Ok(mut change) = serde_json::from_slice::<MarkChange>(&value) else { continue };
            if let MarkChange::Set(mark) = &mut change {
                date(mark, lasts, now);
            }
            app.engine.marks().apply(&change, now);
        }
    }

    fn marks(&self) -> Box<dyn Iterator<Item = Told> + Send + '_> {
        let Some(app) = self.app.upgrade() else { return Box::new(std::iter::empty()) };
        let kinds = [MarkKind::Ban, MarkKind::Flag, MarkKind::Factor];
        Box::new(kinds.into_iter().flat_map(move |kind| Pages::new(Arc::clone(&app), kind)))
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
struct Pages {
    app: Arc<App>,
    kind: MarkKind,
    page: std::vec::IntoIter<Mark>,
    last: Option<tidegate::Key>,
}

impl Pages {
    fn new(app: Arc<App>, kind: MarkKind) -> Self {
        let page = app.engine.marks().list(kind, None, PAGE, app.now()).into_iter();
        Self { app, kind, page, last: None }
    }
}

impl Iterator for Pages {
    type Item = Told;

    fn next(&mut self) -> Option<Told> {
        if self.page.len() == 0 && self.last.is_some() {
            let marks = self.app.engine.marks();
            self.page = marks.list(self.kind, self.last, PAGE, self.app.now()).into_iter();
        }
        let mark = self.page.next()?;
        self.last = Some(mark.id);
        let lasts = mark.left_us(self.app.now()).map(Duration::from_micros);
        Some(set(&mark, lasts))
    }
}

fn set(mark: &Mark, lasts: Option<Duration>) -> Told {
    // The engine keeps the ban that ends later, and the newest factor; so does the store.
    let operation =
        if mark.kind == MarkKind::Factor { MarkOperation::Set } else { MarkOperation::SetIfLonger };
    Told { id: mark.id.0, operation, value: written(&MarkChange::Set(mark.clone())), lasts }
}

/// How long a mark holds that begins now.
fn lasts(mark: &Mark) -> Option<Duration> {
    let until_us = mark.until_unix_us?;
    Some(Duration::from_micros(until_us.saturating_sub(mark.since_unix_us)))
}

/// Dates a mark that was heard of. How long it still lasts is by the store's clock, which is all nodes',
/// and how old it is, is what has gone of the time that it was set for. What has no end says only when
/// it began, by the clock of whoever set it.
fn date(mark: &mut Mark, lasts: Option<Duration>, now: Now) {
    if let (Some(whole), Some(left)) = (self::lasts(mark), lasts) {
        let age_us = micros(whole).saturating_sub(micros(left));
        mark.since_unix_us = now.unix_us.saturating_sub(age_us);
    }
    mark.until_unix_us = lasts.map(|left| now.unix_us.saturating_add(micros(left)));
}

fn written(change: &MarkChange) -> Vec<u8> {
    // Strings and numbers into memory: neither can fail.
    serde_json::to_vec(change).unwrap_or_default()
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
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
        share(&other).await;
        let removed = other.engine.ban(&NewMark::new(Subject::user("u1"))).unwrap();
        assert!(other.engine.unmark(MarkKind::Ban, removed.id));
        let stored = || {
            let id = format!("{:032x}", removed.id.0);
            let value = redis.command(&["HGET", "tg:@marks:values", &id]);
            value.text().chars().next()
        };
        eventually(async || stored() == Some('r')).await;

        let node = Arc::new(redis.stranger(policy).await);
        share(&node).await;
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
            date(&mut mark, Some(Duration::from_secs(40)), now);
            assert_eq!(now.unix_us - mark.since_unix_us, 20_000_000);
            assert_eq!(mark.until_unix_us, Some(now.unix_us + 40_000_000));
        }
    }
}
