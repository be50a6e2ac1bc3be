mod cluster;
mod loans;
mod secured;
mod sentinel;
mod wrong_shapes;

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::{Clock as _, FakeClock};
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, Verdict, token_bucket, total};
use tidegate::engine::plan::{Enforcement, Level, Mode};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::Change;
use tidegate::{Limiter, Policy, Request};
use tidegate_testkit::behaviours::{StoreUnderTest, every_behaviour};
use tidegate_testkit::proxy::{Fault, Proxy};
use tidegate_testkit::servers::{Reply, Server};
use tokio::time::sleep;

use super::secret::RETRY;
use super::*;
use crate::breaker::BreakerState;
use crate::connection::Reason;

/// Generous: what is tested is not how fast this machine is.
const PATIENCE: Duration = Duration::from_secs(10);
const LIMIT: u32 = 100;

fn plan(key: u128) -> Plan {
    let limit = Amount::from_units(u64::from(LIMIT)).unwrap();
    let level = Level {
        limit: 0,
        family: 1,
        key: Key(key),
        spec: Spec::Total(total::Spec { limit }),
        cost: Amount::ONE,
        refundable: false,
        reserved: false,
        leased: false,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    };
    Plan {
        mode: Mode::Charge,
        now: FakeClock::at_unix_seconds(1).now(),
        holder: 0,
        levels: [level].into_iter().collect(),
        names: vec![format!("total:{key}").into()],
    }
}

/// Thousands of decisions wait at once where a server is slow, and each is moved a few times.
#[tokio::test]
async fn a_decision_that_waits_takes_little_room() {
    let nowhere = Config::parse("redis://127.0.0.1:1").unwrap();
    let text = "{ tidegate: 1, name: api, limits: { all: { by: global, token_bucket: 1/s } } }";
    let policy = Policy::parse("api.yaml", text).unwrap();
    let store = RedisStore::connect(&nowhere);
    let limiter = Limiter::builder().policy(policy).store(store).build().unwrap();
    let request = Request::new("GET", "/");
    let room = size_of_val(&limiter.check_async(&request));
    assert!(room <= 1_600, "{room} bytes");
}

fn config(server: &Server) -> Config {
    Config::parse(&server.url()).unwrap()
}

async fn connected(config: Config) -> RedisStore {
    let store = RedisStore::connect(&config);
    assert!(store.ready(PATIENCE).await);
    store
}

fn patient(server: &Server) -> Config {
    config(server).timeout(PATIENCE).unwrap()
}

async fn reaches(store: &RedisStore, state: BreakerState) {
    assert!(store.wait_for(PATIENCE, |status| status.state == state).await);
}

/// What became of concurrent charges.
#[derive(Debug, Default, PartialEq, Eq)]
struct Tally {
    admitted: u32,
    denied: u32,
    failed: u32,
}

async fn charge(stores: &[&RedisStore], times: u32, key: u128) -> Tally {
    let mut charges = JoinSet::new();
    for store in stores {
        for _ in 0..times {
            let store = RedisStore::clone(store);
            charges.spawn(async move { store.decide(&plan(key)).await });
        }
    }
    let mut tally = Tally::default();
    for charged in charges.join_all().await {
        match charged.map(|answer| answer.replies[0].verdict) {
            Ok(Verdict::Allowed) => tally.admitted += 1,
            Ok(_) => tally.denied += 1,
            Err(_) => tally.failed += 1,
        }
    }
    tally
}

fn errors(store: &RedisStore, reason: Reason) -> u64 {
    store.health().shards[0].errors[reason as usize].1
}

/// A store on a clock that the behaviours set.
struct OnSetTime {
    store: RedisStore,
    clock: FakeClock,
}

impl StoreUnderTest for OnSetTime {
    type Store = RedisStore;

    fn store(&self) -> &RedisStore {
        &self.store
    }

    fn now(&self) -> Now {
        self.clock.now()
    }

    async fn advance(&self, us: u64) {
        self.clock.advance(Duration::from_micros(us));
        self.store.set_clock(Time::Fixed(self.clock.now().unix_us));
    }
}

#[tokio::test]
async fn it_shows_every_behaviour() {
    let (server, made) = (Server::start().unwrap(), AtomicU32::new(0));
    let shown = every_behaviour(async || {
        let number = made.fetch_add(1, Ordering::Relaxed);
        let config = patient(&server).prefix(&format!("tg{number}:")).unwrap();
        let clock = FakeClock::at_unix(Duration::from_micros(1_767_603_612_345_678));
        let subject = OnSetTime { store: connected(config).await, clock };
        subject.advance(0).await;
        subject
    });
    shown.await.unwrap_or_else(|failures| panic!("{failures}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_admit_exactly_the_limit_between_them() {
    let server = Server::start().unwrap();
    let (one, other) = (connected(patient(&server)).await, connected(patient(&server)).await);
    let tally = charge(&[&one, &other], 200, 1).await;
    assert_eq!(tally, Tally { admitted: LIMIT, denied: 400 - LIMIT, failed: 0 });
    let health = one.health();
    let shard = &health.shards[0];
    assert_eq!(shard.commands, 200);
    assert!(shard.calls < 200, "{} calls", shard.calls);
    assert!(shard.latency_us > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgets_the_script_in_mid_load_charges_everything_once() {
    let server = Server::start().unwrap();
    let store = connected(patient(&server)).await;
    for round in 0..10 {
        let stores = [&store];
        let loading = charge(&stores, 3 * LIMIT, round);
        let forgetting = async {
            for _ in 0..5 {
                server.command(&["SCRIPT", "FLUSH"]).unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (tally, ()) = tokio::join!(loading, forgetting);
        assert_eq!(tally, Tally { admitted: LIMIT, denied: 2 * LIMIT, failed: 0 });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_in_mid_load_fails_every_call_and_is_found_again() {
    let server = Server::start().unwrap();
    let store = connected(config(&server)).await;
    reaches(&store, BreakerState::Healthy).await;
    let loading = {
        let store = store.clone();
        tokio::spawn(async move {
            let mut tally = Tally::default();
            while store.status().state != BreakerState::Open {
                let more = charge(&[&store], 20, 1).await;
                tally.failed += more.failed;
            }
            tally
        })
    };
    server.kill().unwrap();
    let tally = tokio::time::timeout(PATIENCE, loading).await.unwrap().unwrap();
    assert!(tally.failed >= 5, "{tally:?}");
    let error = store.decide(&plan(2)).await.unwrap_err();
    assert!(error.transient, "{error}");
    assert!(errors(&store, Reason::Open) > 0);
    server.restart().unwrap();
    reaches(&store, BreakerState::Healthy).await;
    assert!(store.decide(&plan(2)).await.is_ok());
}

#[tokio::test]
async fn a_server_that_hangs_costs_each_call_its_deadline_until_it_is_not_asked() {
    let server = Server::start().unwrap();
    let store = connected(config(&server)).await;
    server.pause().unwrap();
    let hung = async {
        while store.status().state.allows_calls() {
            assert!(store.decide(&plan(1)).await.is_err());
        }
    };
    tokio::time::timeout(PATIENCE, hung).await.unwrap();
    assert!(errors(&store, Reason::Timeout) >= 1);
    server.resume().unwrap();
    reaches(&store, BreakerState::Healthy).await;
}

#[tokio::test]
async fn a_connection_that_vanished_without_a_word_is_replaced() {
    let server = Server::start().unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let store = connected(Config::parse(&proxy.url()).unwrap()).await;
    // What has lost an answer stays silent.
    proxy.set(Fault::DropAnswers);
    let lost = async {
        while store.status().state.allows_calls() {
            assert!(store.decide(&plan(1)).await.is_err());
        }
    };
    tokio::time::timeout(PATIENCE, lost).await.unwrap();
    proxy.set(Fault::None);
    reaches(&store, BreakerState::Healthy).await;
    assert!(store.decide(&plan(1)).await.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_carried_out_before_the_connection_broke_is_charged_once_and_answered() {
    let server = Server::start().unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let near = connected(patient(&server)).await;
    let far = connected(Config::parse(&proxy.url()).unwrap().timeout(PATIENCE).unwrap()).await;
    for round in 0..5 {
        reaches(&far, BreakerState::Healthy).await;
        proxy.set(Fault::DropAnswers);
        let charging = {
            let far = far.clone();
            tokio::spawn(async move { charge(&[&far], 50, round).await })
        };
        let key = format!("tg:total:{round}");
        let carried_out = async {
            while server.command(&["EXISTS", &key]).unwrap() != Reply::Integer(1) {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, carried_out).await.unwrap();
        proxy.set(Fault::None);
        proxy.cut();
        let tally = charging.await.unwrap();
        assert_eq!(tally, Tally { admitted: 50, denied: 0, failed: 0 });
        let rest = charge(&[&near], LIMIT, round).await;
        assert_eq!(rest, Tally { admitted: LIMIT - 50, denied: 50, failed: 0 });
    }
    assert!(far.health().shards[0].resends >= 5);
}

#[tokio::test]
async fn a_server_that_does_not_write_is_lost_until_it_does() {
    let server = Server::start().unwrap();
    let store = connected(patient(&server)).await;
    reaches(&store, BreakerState::Healthy).await;
    for (fault, end) in [
        (["CONFIG", "SET", "maxmemory", "1"], ["CONFIG", "SET", "maxmemory", "0"]),
        (
            ["CONFIG", "SET", "min-replicas-to-write", "1"],
            ["CONFIG", "SET", "min-replicas-to-write", "0"],
        ),
        (["REPLICAOF", "127.0.0.1", "1", ""], ["REPLICAOF", "NO", "ONE", ""]),
    ] {
        let [fault, end] = [fault, end]
            .map(|command| command.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>());
        server.command(&fault).unwrap();
        let lost = async {
            while store.status().state.allows_calls() {
                let error = store.decide(&plan(1)).await.unwrap_err();
                assert!(error.transient, "{error}");
            }
        };
        tokio::time::timeout(PATIENCE, lost).await.unwrap();
        server.command(&end).unwrap();
        reaches(&store, BreakerState::Healthy).await;
        assert!(store.decide(&plan(1)).await.is_ok());
    }
}

#[tokio::test]
async fn without_a_server_it_starts_open_and_finds_one_later() {
    let server = Server::start().unwrap();
    server.kill().unwrap();
    let store = RedisStore::connect(&config(&server).nodes(4));
    assert_eq!(store.health().state(), BreakerState::Open);
    assert_eq!((store.health().nodes, store.nodes()), (None, 4));
    assert!(store.decide(&plan(1)).await.unwrap_err().transient);
    server.restart().unwrap();
    assert!(store.ready(PATIENCE).await);
    assert!(store.decide(&plan(1)).await.is_ok());
}

#[tokio::test]
async fn nodes_are_counted_while_they_live() {
    let server = Server::start().unwrap();
    let one = connected(config(&server)).await;
    let other = connected(config(&server)).await;
    for (count, store) in [(2, &one), (2, &other)] {
        let seen = async {
            while store.health().nodes != Some(count) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, seen).await.unwrap();
        assert_eq!(store.nodes(), count);
    }
    drop(other);
    let alone = async {
        while one.nodes() != 1 {
            sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(PATIENCE, alone).await.unwrap();
    assert_ne!(server.command(&["PTTL", "tg:@nodes"]).unwrap(), Reply::Integer(-1), "it expires");
}

#[tokio::test]
async fn all_nodes_have_the_secret_of_the_first() {
    let server = Server::start().unwrap();
    let (one, other) =
        (RedisStore::connect(&config(&server)), RedisStore::connect(&config(&server)));
    let (first, second) = tokio::join!(one.secret(PATIENCE), other.secret(PATIENCE));
    assert_eq!(first.as_ref().unwrap(), &second.unwrap());
    assert_eq!(first, RedisStore::connect(&config(&server)).secret(PATIENCE).await);
    let elsewhere = RedisStore::connect(&config(&server).prefix("other:").unwrap());
    assert_ne!(first, elsewhere.secret(PATIENCE).await);
}

#[tokio::test]
async fn a_server_that_lost_the_secret_is_given_it_again() {
    let server = Server::start().unwrap();
    let store = RedisStore::connect(&config(&server));
    let secret = store.secret(PATIENCE).await.unwrap();
    server.command(&["FLUSHALL"]).unwrap();
    let put_back = async {
        while server.command(&["EXISTS", "tg:@secret"]).unwrap() != Reply::Integer(1) {
            sleep(RETRY).await;
        }
    };
    tokio::time::timeout(PATIENCE, put_back).await.unwrap();
    let later = RedisStore::connect(&config(&server));
    assert_eq!(later.secret(PATIENCE).await, Ok(secret));
}

#[tokio::test]
async fn something_else_in_the_secrets_place_is_told() {
    let server = Server::start().unwrap();
    server.command(&["SET", "tg:@secret", "hello"]).unwrap();
    let error = RedisStore::connect(&config(&server)).secret(PATIENCE).await.unwrap_err();
    assert!(
        !error.transient && error.detail.contains("`tg:@secret` holds something else"),
        "{error}"
    );
}

#[tokio::test]
async fn a_secret_that_cannot_be_had_in_time_is_an_error() {
    let server = Server::start().unwrap();
    server.kill().unwrap();
    let config = config(&server);
    let error = RedisStore::connect(&config).secret(Duration::from_millis(200)).await.unwrap_err();
    assert!(error.transient, "{error}");
}

#[tokio::test]
async fn a_server_that_will_not_let_us_in_gives_no_secret_and_says_why() {
    let server = Server::start().unwrap();
    server.command(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
    let error = RedisStore::connect(&config(&server)).secret(PATIENCE).await.unwrap_err();
    assert!(!error.transient && error.detail.contains("NOAUTH"), "{error}");
    let url = server.url().replace("//", "//:right@");
    let store = RedisStore::connect(&Config::parse(&url).unwrap());
    assert!(store.secret(PATIENCE).await.is_ok());
}

fn refused_for_an_hour(key: u128) -> Plan {
    let bucket =
        token_bucket::Spec { count: Amount::ONE, period_us: 3_600_000_000, burst: Amount::ONE };
    let mut plan = plan(key);
    plan.levels[0].spec = Spec::TokenBucket(bucket);
    plan.names = vec![format!("bucket:{key}").into()];
    plan
}

async fn hears(store: &RedisStore) {
    while !store.health().negative_cache.subscribed {
        sleep(RETRY).await;
    }
}

async fn admitted(store: &RedisStore, plan: &Plan) -> bool {
    store.decide(plan).await.unwrap().replies[0].verdict == Verdict::Allowed
}

#[tokio::test]
async fn a_refusal_is_given_without_asking_until_another_node_resets_the_key() {
    let server = Server::start().unwrap();
    let (one, other) = (connected(patient(&server)).await, connected(patient(&server)).await);
    tokio::time::timeout(PATIENCE, hears(&one)).await.unwrap();
    let plan = refused_for_an_hour(1);
    assert!(admitted(&one, &plan).await && !admitted(&one, &plan).await);
    while one.health().negative_cache.hits == 0 {
        assert!(!admitted(&one, &plan).await);
    }

    let (level, name) = (plan.levels[0], plan.names.first().cloned());
    let reset = Amendment { level, name, charged_at_us: 0, holder: 0, change: Change::Reset };
    assert_eq!(other.amend(plan.now, &[reset]).await.unwrap()[..], [true]);
    let told = async {
        while one.health().negative_cache.messages == 0 {
            sleep(RETRY).await;
        }
    };
    tokio::time::timeout(PATIENCE, told).await.unwrap();
    assert!(admitted(&one, &plan).await);
}

#[tokio::test]
async fn a_server_that_is_lost_leaves_no_refusals_behind() {
    let server = Server::start().unwrap();
    let store = connected(patient(&server)).await;
    tokio::time::timeout(PATIENCE, hears(&store)).await.unwrap();
    let plan = refused_for_an_hour(1);
    assert!(admitted(&store, &plan).await && !admitted(&store, &plan).await);
    server.kill().unwrap();
    let deaf = async {
        while store.health().negative_cache.subscribed {
            sleep(RETRY).await;
        }
    };
    tokio::time::timeout(PATIENCE, deaf).await.unwrap();
    assert_eq!(store.health().negative_cache.refusals, 0);
    server.restart().unwrap();
    tokio::time::timeout(PATIENCE, hears(&store)).await.unwrap();
}

#[tokio::test]
async fn a_store_that_is_lost_says_so_at_once() {
    let config = Config::parse("redis://127.0.0.1:1").unwrap();
    let store = RedisStore::connect(&config);
    let plan = plan(1);
    let mut deciding = Box::pin(store.decide(&plan));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(deciding.as_mut().poll(&mut context).is_ready());
}

#[tokio::test]
async fn more_requests_than_it_can_carry_are_no_sign_of_a_lost_server() {
    const CALLS: u128 = 4;
    const REQUESTS: u128 = 24;
    const WITHIN: Duration = Duration::from_secs(4);
    // Both ways take more than half of the time that an answer may take, and three less than all: what
    // is sent when the first call is answered could not be answered in time.
    const EACH_WAY: Duration = Duration::from_millis(1_160);
    let server = Server::start().unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let config = Config::parse(&proxy.url()).unwrap().timeout(WITHIN).unwrap();
    let store = connected(config).await;
    reaches(&store, BreakerState::Healthy).await;
    proxy.set(Fault::Delay(EACH_WAY));
    let (mut asking, before) = (JoinSet::new(), store.health().shards[0].calls);
    for number in 0..REQUESTS {
        let asks = store.clone();
        asking.spawn(async move { asks.decide(&plan(number)).await.is_ok() });
        let calls = before + u64::try_from(CALLS.min(number + 1)).unwrap();
        while store.health().shards[0].calls < calls {
            sleep(Duration::from_millis(1)).await;
        }
    }
    let answered = asking.join_all().await.into_iter().filter(|answered| *answered).count();
    let health = store.health();
    assert_eq!(answered, usize::try_from(CALLS).unwrap(), "{health:?}");
    let overload = u64::try_from(REQUESTS - CALLS).unwrap();
    assert_eq!(errors(&store, Reason::Overload), overload, "{health:?}");
    // A call that fails for lack of time is what opens the breaker.
    assert_eq!(errors(&store, Reason::Timeout), 0, "{health:?}");
    assert_eq!(health.shards[0].changes[BreakerState::Open as usize].1, 0, "{health:?}");
}
