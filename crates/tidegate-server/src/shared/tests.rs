//! Nodes of one process on a real Redis server, behind a proxy that can cut them off.

use std::task::Waker;

use tidegate::engine::{Progress, Wait};
use tidegate::{Limiter, Policy, Request};
use tidegate_testkit::proxy::{Fault, Proxy};
use tidegate_testkit::servers::{Cluster, Reply, Server};

use super::*;
use crate::admin::Status;
use crate::app::App;
use crate::config::SharedStoreConfig;
use crate::engine::DaemonStore;
use crate::telemetry::{Present, RequestId, timestamp};

const LIMITS: &str = "
tidegate: 1
name: api
limits:
  rate:   { by: user, token_bucket: 3/h burst 3 }
  places: { by: user, concurrency: 1, lease: 1h }
";

/// A Redis server that several nodes of a test share, and the proxy through which they reach it.
pub(crate) struct TestRedis {
    proxy: Proxy,
    server: Server,
}

impl TestRedis {
    pub(crate) fn start() -> Self {
        let server = Server::start().unwrap();
        Self { proxy: Proxy::to(server.addr()).unwrap(), server }
    }

    /// Asks the server itself, past the proxy.
    pub(crate) fn command(&self, command: &[&str]) -> Reply {
        self.server.command(command).unwrap()
    }

    /// How many limits have a key.
    fn keys(&self) -> usize {
        self.command(&["KEYS", "tg:[^@]*"]).items().len()
    }

    /// A node that knows the secret of all.
    pub(crate) async fn node(&self) -> App {
        self.node_with(LIMITS).await
    }

    /// The same with other limits.
    pub(crate) async fn node_with(&self, limits: &str) -> App {
        let app = self.stranger(limits).await;
        self.learn_secret(&app).await;
        app
    }

    /// A node that does not know the secret of all.
    pub(crate) async fn stranger(&self, limits: &str) -> App {
        let app = node_on(&self.proxy.url(), None, limits);
        self.resume(&[&app]).await;
        app
    }

    pub(crate) async fn learn_secret(&self, app: &App) {
        let store = app.engine.store().shared().unwrap();
        let secret = store.secret().await.unwrap();
        app.share_secret(&secret);
        app.engine.set_hash_key(secret.clone());
        store.adopt_secret(&secret);
    }

    /// Cuts nodes off, until they have noticed.
    pub(crate) async fn stop(&self, nodes: &[&App]) {
        self.proxy.set(Fault::Refuse);
        self.proxy.cut();
        for node in nodes {
            let store = node.engine.store().shared().unwrap();
            let plan = Plan {
                mode: Mode::Peek,
                now: node.now(),
                holder: 0,
                levels: [].into_iter().collect(),
                names: Vec::new(),
            };
            eventually(async || store.redis().decide(&plan).await.is_err() && store.is_lost())
                .await;
        }
    }

    /// Lets nodes reach the server, until all is well.
    pub(crate) async fn resume(&self, nodes: &[&App]) {
        self.proxy.set(Fault::None);
        for node in nodes {
            eventually(async || state(node) == BreakerState::Healthy).await;
        }
    }
}

fn node_on(url: &str, cluster_tag: Option<&str>, limits: &str) -> App {
    let config = SharedStoreConfig {
        url: url.to_owned(),
        prefix: "tg:".to_owned(),
        ca: None,
        // A busy machine answers late.
        timeout: Duration::from_secs(5),
        nodes: None,
        cluster_tag: cluster_tag.map(str::to_owned),
    };
    let mut app = App::new(Policy::parse("p.yaml", limits).unwrap());
    let metrics = Arc::clone(&app.metrics);
    let store = SharedStore::new(connect(&config).unwrap(), metrics, app.clock.clone());
    let policies = app.engine.policies();
    let builder = Limiter::builder().store(DaemonStore::Shared(store)).clock(app.clock.clone());
    let builder = policies.into_iter().fold(builder, tidegate::LimiterBuilder::policy);
    app.engine = builder.build().unwrap();
    app
}

fn state(node: &App) -> BreakerState {
    node.engine.store().shared().unwrap().redis().health().state()
}

fn request() -> Request<'static> {
    Request::new("GET", "/").user("u1")
}

async fn decide(app: &App, wait: Wait) -> tidegate::Decision {
    let request = request();
    let mut context = app.engine.context(&request).unwrap();
    app.decide(&mut context, RequestId::random, wait).await.unwrap().0
}

async fn peek(app: &App) -> tidegate::Decision {
    app.engine.peek_async(&request()).await.unwrap()
}

pub(crate) async fn eventually(mut condition: impl AsyncFnMut() -> bool) {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    waited.await.unwrap();
}

#[tokio::test]
async fn nodes_share_one_limit_and_a_release_on_any_of_them_counts_on_all() {
    let redis = TestRedis::start();
    let nodes = [redis.node().await, redis.node().await];
    let request = request();
    let context = nodes[0].engine.context(&request).unwrap();
    let progress = nodes[0].engine.start(&context, Wait::Never).unwrap();
    assert!(matches!(progress, Progress::Pending(_)), "a shared store must be waited for");
    for turn in 0..3 {
        let mut lease = decide(&nodes[turn % 2], Wait::Never).await.reservation.unwrap();
        assert_eq!(decide(&nodes[0], Wait::Never).await.limit_name(), Some("places"));
        assert!(nodes[(turn + 1) % 2].engine.release_async(&mut lease).await.unwrap());
    }
    for node in &nodes {
        assert_eq!(decide(node, Wait::Never).await.limit_name(), Some("rate"));
        let page = node.metrics.render(&Present::default());
        assert!(!page.contains("tidegate_store_seconds_count{op=\"decide\"} 0\n"), "{page}");
    }
}

#[tokio::test]
async fn a_place_that_is_given_back_on_another_node_is_found() {
    let redis = TestRedis::start();
    let (one, other) = (redis.node().await, redis.node().await);
    let mut lease = decide(&one, Wait::Never).await.reservation.unwrap();
    let waits = decide(&other, Wait::AtMost(Duration::from_secs(600)));
    let gives_back = async {
        eventually(async || other.engine.waiters() == 1).await;
        assert!(one.engine.release_async(&mut lease).await.unwrap());
    };
    let (decision, ()) =
        tokio::time::timeout(Duration::from_secs(20), async { tokio::join!(waits, gives_back) })
            .await
            .unwrap();
    assert!(decision.is_allowed());
}

#[tokio::test]
async fn what_was_taken_for_a_request_that_went_away_is_given_back() {
    let redis = TestRedis::start();
    let node = redis.node().await;
    for wait in [Wait::Never, Wait::ByPolicy, Wait::AtMost(Duration::from_secs(60))] {
        redis.proxy.set(Fault::DropAnswers);
        tokio::select! {
            _ = decide(&node, wait) => panic!("the answer was dropped"),
            () = eventually(async || redis.keys() == 2) => {}
        }
        redis.proxy.set(Fault::None);
        redis.proxy.cut();
        // All three tokens and the place are there again: nobody was charged for nothing.
        let is_back = async || {
            let seen = peek(&node).await;
            seen.limits.iter().all(|limit| limit.is_allowed()) && seen.limits[0].remaining() == 3
        };
        eventually(is_back).await;
        eventually(async || redis.keys() == 0).await;
    }
}

#[tokio::test]
async fn a_call_that_was_never_made_takes_nothing() {
    let redis = TestRedis::start();
    let node = redis.node().await;
    drop(decide(&node, Wait::Never));
    // Calls are carried out in order: the server has seen whatever was sent before.
    assert_eq!(peek(&node).await.limits[0].remaining(), 3);
    assert_eq!(redis.keys(), 0);
}

#[tokio::test]
async fn what_is_decided_without_the_store_says_so() {
    let redis = TestRedis::start();
    let node = redis.node().await;
    redis.stop(&[&node]).await;
    let degraded = decide(&node, Wait::Never).await;
    assert!(degraded.degraded && degraded.is_allowed());
    let detail = degraded.store_error.unwrap().detail;
    let refused = "cannot connect: Connection refused (os error 111)";
    assert_eq!(detail, format!("it is not asked since it failed: {refused}"));
    redis.resume(&[&node]).await;
    assert!(!decide(&node, Wait::Never).await.degraded);
}

#[tokio::test]
async fn the_status_tells_of_the_store_and_the_metrics_do() {
    let redis = TestRedis::start();
    let node = redis.node().await;
    let health = || node.engine.store().shared().unwrap().redis().health();
    eventually(async || health().nodes == Some(1)).await;
    redis.stop(&[&node]).await;
    let status = Status::for_tests(node.now());
    let store = || {
        let status: serde_json::Value = serde_json::from_str(&status.render(&node)).unwrap();
        status["store"].clone()
    };
    let (address, since) = (redis.proxy.addr().to_string(), timestamp(health().since_us()));
    let error = "cannot connect: Connection refused (os error 111)";
    let told = store();
    assert_eq!((&told["kind"], &told["state"]), (&"redis".into(), &"lost".into()));
    assert_eq!((&told["degraded"], &told["nodes"]), (&true.into(), &1.into()));
    assert_eq!(told["last_error"], format!("{address}: {error}"));
    assert_eq!(told["since"], since);
    let shard = serde_json::json!({
        "address": address, "state": "open", "since": since, "last_error": error, "queued": 0
    });
    assert_eq!(told["shards"], serde_json::json!([shard]));
    assert_eq!(status.present(&node).store.unwrap().health.state(), BreakerState::Open);
    redis.proxy.set(Fault::None);
    eventually(async || state(&node) == BreakerState::Merging).await;
    let told = store();
    assert_eq!(told["state"], "recovering");
    assert_eq!(told["degraded"], false, "it is asked again");
}

#[tokio::test]
async fn a_node_that_does_not_know_the_secret_does_without_the_store_until_it_does() {
    let redis = TestRedis::start();
    let node = Arc::new(redis.stranger(LIMITS).await);
    assert!(decide(&node, Wait::Never).await.degraded);
    assert_eq!(redis.keys(), 0, "nobody's keys must be there under another secret");
    let following = tokio::spawn(follow(Arc::clone(&node)));
    eventually(async || !node.engine.store().shared().unwrap().lacks_secret()).await;
    following.abort();
    let mut lease = decide(&node, Wait::Never).await.reservation.unwrap();
    let other = redis.node().await;
    assert_eq!(decide(&other, Wait::Never).await.limit_name(), Some("places"));
    assert!(node.engine.release_async(&mut lease).await.unwrap());
}

#[tokio::test]
async fn a_node_learns_the_secret_though_a_part_of_the_store_is_lost() {
    let cluster = Cluster::start().unwrap();
    let tag = "one";
    let owner = cluster.first_owner_of(cluster.slot_of(&format!("{{{tag}}}")).unwrap());
    let lost = (owner + 1) % 3;
    let proxy = Proxy::to(cluster.nodes()[lost].addr()).unwrap();
    cluster.announce(lost, proxy.addr().port()).unwrap();
    proxy.set(Fault::Refuse);
    proxy.cut();
    let url = format!("redis+cluster://{}", cluster.nodes()[owner].addr());
    let nodes = [(); 2].map(|()| Arc::new(node_on(&url, Some(tag), LIMITS)));
    for node in &nodes {
        let shared = node.engine.store().shared().unwrap();
        let answers = |state| shared.redis().health().shards.iter().filter(state).count();
        let is_healthy =
            |shard: &&tidegate_redis::ShardHealth| shard.state == BreakerState::Healthy;
        eventually(async || answers(is_healthy) == 2).await;
        assert!(shared.is_lost());
        assert!(decide(node, Wait::Never).await.degraded);
        let following = tokio::spawn(follow(Arc::clone(node)));
        eventually(async || !shared.lacks_secret()).await;
        following.abort();
        assert!(shared.is_lost());
    }
    let decision = decide(&nodes[0], Wait::Never).await;
    assert!(!decision.degraded && decision.is_allowed(), "what answers is asked");
    assert_eq!(decide(&nodes[1], Wait::Never).await.limit_name(), Some("places"));
}

#[tokio::test]
async fn what_a_node_admitted_alone_is_charged_to_the_store_once_it_is_back() {
    let redis = TestRedis::start();
    let node = redis.node().await;
    let shared = node.engine.store().shared().unwrap();
    let mut recovery = recovery::Recovery::default();
    redis.stop(&[&node]).await;
    recovery.step(&node, shared, &shared.redis().health()).await;
    let alone = decide(&node, Wait::Never).await;
    assert!(alone.degraded && alone.is_allowed());
    assert_eq!((node.engine.owed().keys, redis.keys()), (1, 0), "places are not owed");

    redis.proxy.set(Fault::None);
    eventually(async || state(&node) == BreakerState::Merging).await;
    recovery.step(&node, shared, &shared.redis().health()).await;
    assert_eq!((node.engine.owed().keys, redis.keys()), (0, 1));
    redis.resume(&[&node]).await;
    recovery.step(&node, shared, &shared.redis().health()).await;
    let seen = decide(&node, Wait::Never).await;
    assert_eq!((seen.degraded, seen.limits[0].remaining()), (false, 1), "one alone, one now");
    let page = node.metrics.render(&Present::default());
    assert!(page.contains("tidegate_store_merged_total{result=\"sent\"} 1\n"), "{page}");
}

#[tokio::test]
async fn a_loss_that_nobody_saw_is_made_up_for() {
    let redis = TestRedis::start();
    let node = redis.node().await;
    let shared = node.engine.store().shared().unwrap();
    let mut recovery = recovery::Recovery::default();
    recovery.step(&node, shared, &shared.redis().health()).await;
    redis.stop(&[&node]).await;
    assert!(decide(&node, Wait::Never).await.degraded);
    redis.resume(&[&node]).await;
    assert_eq!(node.engine.owed().keys, 1);
    recovery.step(&node, shared, &shared.redis().health()).await;
    assert_eq!((node.engine.owed().keys, redis.keys()), (0, 1));
}

#[tokio::test]
async fn a_decision_without_the_store_waits_for_nothing() {
    let redis = TestRedis::start();
    let node = redis.node().await;
    redis.stop(&[&node]).await;
    let mut context = Context::from_waker(Waker::noop());
    let mut deciding = Box::pin(decide(&node, Wait::Never));
    assert!(deciding.as_mut().poll(&mut context).is_ready());
}
