//! A store that must be waited for, without a network: its memory is shared by the nodes of a test.

use std::future::poll_fn;
use std::sync::{Mutex, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tidegate::store::{ImmediateStore as _, Memory};
use tidegate::{Limiter, Policy, Request};
use tokio::sync::watch;

use super::*;
use crate::admin::Status;
use crate::app::{App, Hold};
use crate::engine::Engine;
use crate::telemetry::{Present, RequestId};

const LIMITS: &str = "
tidegate: 1
name: api
limits:
  rate:   { by: user, token_bucket: 3/h burst 3 }
  places: { by: user, concurrency: 1, lease: 1h }
";

/// A store that several nodes of a test share. It does at once what it is asked for, and answers while
/// its gate is open.
#[derive(Clone)]
pub(crate) struct Late {
    memory: Arc<Memory>,
    gate: watch::Sender<bool>,
    health: Arc<Mutex<Health>>,
    /// Whether what is lost is another part of it than all that is asked for.
    answers_in_part: Arc<AtomicBool>,
    /// The marks that it was told of.
    pub(crate) told: Arc<Mutex<Vec<MarkChange>>>,
}

impl Late {
    pub(crate) fn new() -> Self {
        let state = StoreState::Healthy;
        let (nodes, last_error) = (Some(2), None);
        let health = Health {
            kind: "late",
            state,
            since_unix_us: 0,
            losses: 0,
            nodes,
            last_error,
            shards: Vec::new(),
            lost_refunds: 0,
            known: KnownHealth::default(),
            strangers: 0,
        };
        let health = Arc::new(Mutex::new(health));
        let (memory, answers_in_part) = (Arc::default(), Arc::default());
        let gate = watch::Sender::new(true);
        Self { memory, gate, health, answers_in_part, told: Arc::default() }
    }

    pub(crate) fn set(&self, state: StoreState, last_error: Option<&str>) {
        let mut health = self.health.lock().unwrap();
        health.losses += u64::from(state == StoreState::Lost);
        (health.state, health.last_error) = (state, last_error.map(str::to_owned));
    }

    /// A node that knows the secret of all.
    pub(crate) fn node(&self) -> App {
        self.node_with(LIMITS)
    }

    /// The same with other limits.
    pub(crate) fn node_with(&self, limits: &str) -> App {
        let (app, secret) = (self.stranger(limits), HashKey::new([7; 16]));
        app.share_secret(&secret);
        app.engine.set_hash_key(secret.clone());
        app.engine.shared().unwrap().secret_is_known(&secret);
        app
    }

    /// A node that has not heard of the secret.
    pub(crate) fn stranger(&self, limits: &str) -> App {
        let mut app = App::new(Policy::parse("p.yaml", limits).unwrap());
        let metrics = Arc::clone(&app.metrics);
        let store = SharedStore::new(Arc::new(self.clone()), metrics, app.clock.clone());
        let policies = app.engine.policies();
        let builder = Limiter::builder().store(store).clock(app.clock.clone());
        let builder = policies.into_iter().fold(builder, tidegate::LimiterBuilder::policy);
        app.engine = Engine::Shared(builder.build().unwrap());
        app
    }

    fn calling<T: Send + 'static>(
        &self,
        act: impl FnOnce(&Memory) -> T + Send + 'static,
    ) -> Calling<T> {
        let store = self.clone();
        Box::pin(async move {
            let gone = || StoreError { transient: true, detail: "gone".to_owned() };
            let state = store.health.lock().unwrap_or_else(PoisonError::into_inner).state;
            if state == StoreState::Lost && !store.answers_in_part.load(Ordering::Relaxed) {
                return Err(gone());
            }
            let done = act(&store.memory);
            store.gate.subscribe().wait_for(|open| *open).await.map_err(|_| gone())?;
            Ok(done)
        })
    }
}

impl Remote for Late {
    fn decide(&self, plan: Arc<Plan>) -> Calling<Answer> {
        self.calling(move |memory| memory.decide_now(&plan).unwrap())
    }

    fn amend(&self, now: Now, amendments: Vec<Amendment>) -> Calling<Amended, Unamended> {
        let rest = amendments.clone();
        let calling = self.calling(move |memory| memory.amend_now(now, &amendments).unwrap());
        let unamended = |error| Unamended { error, sent: false, rest };
        Box::pin(async move { calling.await.map_err(unamended) })
    }

    /// What one node has is not all that there is.
    fn announce(&self, _: &[u64]) {}

    fn health(&self) -> Health {
        self.health.lock().unwrap().clone()
    }

    fn secret(&self) -> Calling<[u8; 16]> {
        self.calling(|_| [7; 16])
    }

    fn hashes_with(&self, _: &str) {}

    fn mark_changed(&self, change: MarkChange) {
        self.told.lock().unwrap().push(change);
    }

    /// It has no names, so that nothing is found by them.
    fn scan(&self, _: String, _: Cursor, _: usize) -> Calling<Page> {
        self.calling(|_| Page::default())
    }

    fn look(&self, names: Vec<Arc<str>>) -> Calling<Vec<Option<Found>>> {
        self.calling(move |_| names.iter().map(|_| None).collect())
    }

    fn delete(&self, _: Vec<Arc<str>>) -> Calling<u64> {
        self.calling(|_| 0)
    }
}

fn request() -> Request<'static> {
    Request::new("GET", "/").user("u1")
}

async fn decide(app: &App, hold: Hold) -> tidegate::Decision {
    app.decide(&request(), RequestId::random, hold).await.unwrap().0
}

async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.unwrap();
}

#[tokio::test]
async fn nodes_share_one_limit_and_a_release_on_any_of_them_counts_on_all() {
    let store = Late::new();
    let nodes = [store.node(), store.node()];
    assert!(nodes[0].decide_now(&request(), RequestId::random, Hold::Never).is_none());
    for turn in 0..3 {
        let mut lease = decide(&nodes[turn % 2], Hold::Never).await.reservation.unwrap();
        assert_eq!(decide(&nodes[0], Hold::Never).await.limit_name(), Some("places"));
        assert!(nodes[(turn + 1) % 2].engine.release(&mut lease).await.unwrap());
    }
    for node in &nodes {
        assert_eq!(decide(node, Hold::Never).await.limit_name(), Some("rate"));
        let page = node.metrics.render(&Present::default());
        assert!(!page.contains("tidegate_store_seconds_count{op=\"decide\"} 0\n"), "{page}");
    }
}

#[tokio::test]
async fn a_place_that_is_given_back_on_another_node_is_found() {
    let store = Late::new();
    let (one, other) = (store.node(), store.node());
    let mut lease = decide(&one, Hold::Never).await.reservation.unwrap();
    let waits = decide(&other, Hold::UpTo(Duration::from_secs(600)));
    let gives_back = async {
        eventually(async || other.engine.waiters() == 1).await;
        assert!(one.engine.release(&mut lease).await.unwrap());
    };
    let (decision, ()) =
        tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(waits, gives_back) })
            .await
            .unwrap();
    assert!(decision.is_allowed());
}

#[tokio::test]
async fn what_was_taken_for_a_request_that_went_away_is_given_back() {
    let store = Late::new();
    let node = store.node();
    for hold in [Hold::Never, Hold::AsThePolicySays, Hold::UpTo(Duration::from_secs(60))] {
        store.gate.send_replace(false);
        let mut asking = Box::pin(decide(&node, hold));
        let mut context = Context::from_waker(Waker::noop());
        assert!(asking.as_mut().poll(&mut context).is_pending());
        drop(asking);
        store.gate.send_replace(true);
        // All three tokens and the place are there again: nobody was charged for nothing.
        let is_back = async || {
            let Engine::Shared(limiter) = &node.engine else { return false };
            let seen = limiter.decide(&request(), Mode::Peek).await.unwrap();
            seen.limits.iter().all(|limit| limit.is_allowed()) && seen.limits[0].remaining() == 3
        };
        eventually(is_back).await;
    }
}

#[tokio::test]
async fn a_call_that_was_never_made_takes_nothing() {
    let store = Late::new();
    let node = store.node();
    drop(decide(&node, Hold::Never));
    let mut asked = false;
    poll_fn(|context| match std::mem::replace(&mut asked, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
    assert_eq!(store.memory.keys(), 0);
}

#[tokio::test]
async fn what_is_decided_without_the_store_says_so() {
    let store = Late::new();
    let node = store.node();
    store.set(StoreState::Lost, Some("connection refused"));
    let degraded = decide(&node, Hold::Never).await;
    assert!(degraded.degraded && degraded.is_allowed());
    assert_eq!(degraded.store_error.unwrap().detail, "gone");
    store.set(StoreState::Healthy, None);
    assert!(!decide(&node, Hold::Never).await.degraded);
}

#[tokio::test]
async fn the_status_tells_of_the_store_and_the_metrics_do() {
    let store = Late::new();
    let node = store.node();
    store.set(StoreState::Lost, Some("connection refused"));
    let status = Status::for_tests(node.now());
    let told: serde_json::Value = serde_json::from_str(&status.render(&node)).unwrap();
    let told = &told["store"];
    assert_eq!((&told["kind"], &told["state"]), (&"late".into(), &"lost".into()));
    assert_eq!((&told["degraded"], &told["nodes"]), (&true.into(), &2.into()));
    assert_eq!(told["last_error"], "connection refused");
    assert_eq!(told["since"], "1970-01-01T00:00:00.000000Z");
    assert_eq!(told["shards"], serde_json::json!([]));
    assert_eq!(status.present(&node).store.unwrap().health.state, StoreState::Lost);
    store.set(StoreState::Recovering, None);
    let told: serde_json::Value = serde_json::from_str(&status.render(&node)).unwrap();
    assert_eq!(told["store"]["degraded"], false, "it is asked again");
}

#[tokio::test]
async fn a_node_that_does_not_know_the_secret_does_without_the_store_until_it_does() {
    let store = Late::new();
    store.set(StoreState::Lost, None);
    let node = Arc::new(store.stranger(LIMITS));
    store.set(StoreState::Recovering, None);
    let following = tokio::spawn(follow(Arc::clone(&node)));
    assert!(decide(&node, Hold::Never).await.degraded);
    assert_eq!(store.memory.keys(), 0, "nobody's keys must be there under another secret");
    store.set(StoreState::Healthy, None);
    eventually(async || !node.engine.shared().unwrap().lacks_secret()).await;
    following.abort();
    let mut lease = decide(&node, Hold::Never).await.reservation.unwrap();
    assert_eq!(decide(&store.node(), Hold::Never).await.limit_name(), Some("places"));
    assert!(node.engine.release(&mut lease).await.unwrap());
}

#[tokio::test]
async fn a_node_learns_the_secret_though_a_part_of_the_store_is_lost() {
    let store = Late::new();
    store.set(StoreState::Lost, Some("one of three servers is gone"));
    let node = Arc::new(store.stranger(LIMITS));
    let following = tokio::spawn(follow(Arc::clone(&node)));
    assert!(decide(&node, Hold::Never).await.degraded);
    store.answers_in_part.store(true, Ordering::Relaxed);
    eventually(async || !node.engine.shared().unwrap().lacks_secret()).await;
    following.abort();
    let decision = decide(&node, Hold::Never).await;
    assert!(!decision.degraded && decision.is_allowed(), "what answers is asked");
    assert_eq!(decide(&store.node(), Hold::Never).await.limit_name(), Some("places"));
}

#[tokio::test]
async fn what_a_node_admitted_alone_is_charged_to_the_store_once_it_is_back() {
    let store = Late::new();
    let node = store.node();
    let shared = node.engine.shared().unwrap();
    let mut recovery = recovery::Recovery::default();
    store.set(StoreState::Lost, None);
    recovery.go_on(&node, shared, &shared.health()).await;
    let alone = decide(&node, Hold::Never).await;
    assert!(alone.degraded && alone.is_allowed());
    assert_eq!((node.engine.owed().keys, store.memory.keys()), (1, 0), "places are not owed");

    store.set(StoreState::Recovering, None);
    recovery.go_on(&node, shared, &shared.health()).await;
    assert_eq!((node.engine.owed().keys, store.memory.keys()), (0, 1));
    store.set(StoreState::Healthy, None);
    recovery.go_on(&node, shared, &shared.health()).await;
    let seen = decide(&node, Hold::Never).await;
    assert_eq!((seen.degraded, seen.limits[0].remaining()), (false, 1), "one alone, one now");
    let page = node.metrics.render(&Present::default());
    assert!(page.contains("tidegate_store_merged_total{result=\"sent\"} 1\n"), "{page}");
}

#[tokio::test]
async fn a_loss_that_nobody_saw_is_made_up_for() {
    let store = Late::new();
    let node = store.node();
    let shared = node.engine.shared().unwrap();
    let mut recovery = recovery::Recovery::default();
    recovery.go_on(&node, shared, &shared.health()).await;
    store.set(StoreState::Lost, None);
    assert!(decide(&node, Hold::Never).await.degraded);
    store.set(StoreState::Healthy, None);
    assert_eq!(node.engine.owed().keys, 1);
    recovery.go_on(&node, shared, &shared.health()).await;
    assert_eq!((node.engine.owed().keys, store.memory.keys()), (0, 1));
}

#[tokio::test]
async fn a_decision_without_the_store_waits_for_nothing() {
    let store = Late::new();
    let node = store.node();
    store.set(StoreState::Lost, None);
    let mut context = Context::from_waker(Waker::noop());
    let mut deciding = Box::pin(decide(&node, Hold::Never));
    assert!(deciding.as_mut().poll(&mut context).is_ready());
}
