//! A cluster of six: limits in several slots, slots that move, servers that are lost.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tidegate_testkit::servers::Cluster;

use super::*;

const MANY: u64 = 1_000_000;

pub(super) fn config(cluster: &Cluster) -> Config {
    let seeds: Vec<String> =
        cluster.nodes()[..2].iter().map(|node| node.addr().to_string()).collect();
    let config = Config::parse(&format!("redis+cluster://{}", seeds.join(","))).unwrap();
    config.timeout(PATIENCE).unwrap()
}

/// A plan with a level for each name, all with this limit.
fn plan_of(names: &[&str], limit: u64) -> Plan {
    let mut plan = plan(0);
    let mut level = plan.levels[0];
    level.spec = Spec::Total(total::Spec { limit: Amount::from_units(limit).unwrap() });
    plan.levels = (0..names.len())
        .map(|at| Level { key: Key(at as u128), limit: u16::try_from(at).unwrap(), ..level })
        .collect();
    plan.names = names.iter().map(|name| (*name).into()).collect();
    plan
}

/// How much of each level is spent.
async fn spent(store: &RedisStore, names: &[&str], limit: u64) -> Vec<u64> {
    let plan = Plan { mode: Mode::Peek, ..plan_of(names, limit) };
    let answer = store.decide(&plan).await.unwrap();
    answer.replies.iter().map(|reply| limit - reply.reading.available.whole()).collect()
}

/// Charges again and again until it is told to stop; how often it was admitted, and what failed.
fn load(
    store: &RedisStore,
    names: &'static [&'static str],
    over: &Arc<AtomicBool>,
) -> tokio::task::JoinHandle<(u64, Vec<StoreError>)> {
    let (store, over) = (store.clone(), Arc::clone(over));
    tokio::spawn(async move {
        let (mut admitted, mut failed) = (0, Vec::new());
        while !over.load(Ordering::Relaxed) {
            match store.decide(&plan_of(names, MANY)).await {
                Ok(answer) if answer.replies.iter().all(|reply| reply.charged) => admitted += 1,
                Ok(answer) => panic!("refused: {answer:?}"),
                Err(error) => {
                    failed.push(error);
                    sleep(Duration::from_millis(1)).await;
                }
            }
        }
        (admitted, failed)
    })
}

async fn shows_every_behaviour(cluster: &Cluster, tag: Option<&str>) {
    let made = AtomicU32::new(0);
    let shown = every_behaviour(async || {
        let number = made.fetch_add(1, Ordering::Relaxed);
        let tagged = tag.map_or("u", |_| "t");
        let config = config(cluster).prefix(&format!("{tagged}{number}:")).unwrap();
        let config = match tag {
            Some(tag) => config.cluster_tag(tag).unwrap(),
            None => config,
        };
        let clock = FakeClock::at_unix(Duration::from_micros(1_767_603_612_345_678));
        let subject = OnSetTime { store: connected(config).await, clock };
        subject.advance(0).await;
        subject
    });
    shown.await.unwrap_or_else(|failures| panic!("{failures}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_shows_every_behaviour_and_exact_totals() {
    let cluster = Cluster::start().unwrap();
    shows_every_behaviour(&cluster, None).await;
    shows_every_behaviour(&cluster, Some("one")).await;
    totals_are_exact(&cluster, None).await;
    totals_are_exact(&cluster, Some("one")).await;
    who_loses_a_race_gives_back(&cluster).await;
}

/// Requests that all see enough at first race for what they share, and charge something else before.
async fn who_loses_a_race_gives_back(cluster: &Cluster) {
    let store = connected(config(cluster)).await;
    let mut races = JoinSet::new();
    for _ in 0..100 {
        for names in [["own", "shared"], ["shared", "other"]] {
            let store = store.clone();
            races.spawn(async move {
                let answer = store.decide(&plan_of(&names, 100)).await.unwrap();
                let charged = answer.replies.iter().filter(|reply| reply.charged).count();
                assert!(charged == 0 || charged == 2, "{answer:?}");
                (names[0] == "own", charged == 2)
            });
        }
    }
    let races = races.join_all().await;
    let [own, other] = [true, false].map(|own| {
        let admitted = races.iter().filter(|race| **race == (own, true));
        u64::try_from(admitted.count()).unwrap()
    });
    assert!(own + other <= 100, "{own} and {other}");
    let given_back = async {
        while spent(&store, &["own", "shared", "other"], 100).await != [own, own + other, other] {
            sleep(RETRY).await;
        }
    };
    tokio::time::timeout(PATIENCE, given_back).await.unwrap();
    assert_eq!(store.health().lost_refunds, 0);
}

/// Two nodes charge limits in several slots until none is left.
async fn totals_are_exact(cluster: &Cluster, tag: Option<&str>) {
    let tagged = |config: Config| match tag {
        Some(tag) => config.cluster_tag(tag).unwrap(),
        None => config,
    };
    let (one, other) =
        (connected(tagged(config(cluster))).await, connected(tagged(config(cluster))).await);
    let names = ["a", "b", "c", "d"];
    let mut admitted = 0;
    // Whoever loses a race may be refused although there is enough; not for ever.
    while spent(&one, &names, 100).await[0] < 100 {
        let mut charges = JoinSet::new();
        for store in [&one, &other] {
            for _ in 0..100 {
                let store = store.clone();
                charges.spawn(async move { store.decide(&plan_of(&names, 100)).await.unwrap() });
            }
        }
        let answers = charges.join_all().await;
        admitted += answers.iter().filter(|answer| answer.replies[0].charged).count();
        for answer in answers {
            let charged = answer.replies.iter().filter(|reply| reply.charged).count();
            assert!(charged == 0 || charged == names.len(), "{answer:?}");
        }
    }
    assert_eq!(admitted, 100);
    assert_eq!(spent(&other, &names, 100).await, [100; 4]);
    assert_eq!((one.health().lost_refunds, other.health().lost_refunds), (0, 0));
}

#[tokio::test]
async fn a_cluster_that_nobody_tells_of_is_lost_and_says_why() {
    let server = Server::start().unwrap();
    let url = server.url().replace("redis://", "redis+cluster://");
    let store = RedisStore::connect(&Config::parse(&url).unwrap());
    let error = store.secret(Duration::from_millis(300)).await.unwrap_err();
    assert!(error.transient && error.detail.contains("cluster support disabled"), "{error}");
    let health = store.health();
    assert_eq!(health.state(), BreakerState::Open);
    assert_eq!(health.shards[0].address, server.addr().to_string());
    assert!(health.shards[0].last_error.is_some() && health.shards[0].since_us > 0);
    assert!(store.decide(&plan(1)).await.unwrap_err().transient);
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_may_move_and_masters_fail_under_load() {
    let cluster = Cluster::start().unwrap();
    let (one, other) = (connected(config(&cluster)).await, connected(config(&cluster)).await);
    slots_move(&cluster, &one, &other).await;
    a_replica_takes_over(&cluster, &one).await;
    a_master_is_lost(&cluster, &one).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_carried_out_before_a_connection_to_a_cluster_broke_is_charged_once() {
    let cluster = Cluster::start().unwrap();
    let owner = cluster.first_owner_of(cluster.slot_of("tg:total:1").unwrap());
    let proxy = Proxy::to(cluster.nodes()[owner].addr()).unwrap();
    cluster.announce(owner, proxy.addr().port()).unwrap();
    let store = connected(config(&cluster)).await;
    reaches(&store, BreakerState::Healthy).await;
    proxy.set(Fault::DropAnswers);
    let charging = {
        let store = store.clone();
        tokio::spawn(async move { charge(&[&store], 50, 1).await })
    };
    let kept = || cluster.nodes()[owner].command(&["EXISTS", "tg:total:1"]).unwrap();
    let carried_out = async {
        while kept() != Reply::Integer(1) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, carried_out).await.unwrap();
    proxy.set(Fault::None);
    proxy.cut();
    let tally = charging.await.unwrap();
    assert_eq!(tally, Tally { admitted: 50, denied: 0, failed: 0 });
    let rest = charge(&[&store], LIMIT, 1).await;
    assert_eq!(rest, Tally { admitted: LIMIT - 50, denied: 50, failed: 0 });
}

/// A slot is moved under load, with keys on both sides for a while: nothing is charged twice.
async fn slots_move(cluster: &Cluster, one: &RedisStore, other: &RedisStore) {
    const TOGETHER: &[&str] = &["{t}a", "{t}b"];
    const FRESH: &[&str] = &["{t}c", "{t}d", "elsewhere"];
    assert!(one.decide(&plan_of(TOGETHER, MANY)).await.unwrap().replies[0].charged);
    let over = Arc::new(AtomicBool::new(false));
    let loads = [one, other, one].map(|store| load(store, TOGETHER, &over));
    let fresh = load(other, FRESH, &over);
    let slot = cluster.slot_of("{t}").unwrap();
    let from = cluster.first_owner_of(slot);
    let to = (from + 1) % 3;
    for (from, to) in [(from, to), (to, from)] {
        patiently(|| cluster.begin_move(slot, from, to)).await;
        for key in ["tg:{t}a", "tg:{t}b"] {
            patiently(|| cluster.move_key(key, from, to)).await;
            sleep(Duration::from_millis(50)).await;
        }
        patiently(|| cluster.finish_move(slot, from, to)).await;
        sleep(Duration::from_millis(50)).await;
    }
    over.store(true, Ordering::Relaxed);
    let (mut admitted, mut failed) = (1, Vec::new());
    for load in loads {
        let (more, errors) = load.await.unwrap();
        assert!(more > 0);
        admitted += more;
        failed.extend(errors);
    }
    charged_once(one, TOGETHER, admitted, &failed).await;
    let (admitted, failed) = fresh.await.unwrap();
    charged_once(one, FRESH, admitted, &failed).await;
}

/// On a busy machine a cluster may be down for a moment. Nothing else may have failed, and what failed
/// may have been charged.
async fn charged_once(store: &RedisStore, names: &[&str], admitted: u64, failed: &[StoreError]) {
    let down = |error: &StoreError| error.detail.contains("ClusterDown");
    assert!(failed.iter().all(down), "{failed:?}");
    let most = admitted + failed.len() as u64;
    for spent in spent(store, names, MANY).await {
        assert!((admitted..=most).contains(&spent), "{spent} of {admitted}, {failed:?}");
    }
}

/// Until it is done: a cluster that is down for a moment refuses.
async fn patiently(mut act: impl FnMut() -> std::io::Result<()>) {
    let done = async {
        while act().is_err() {
            sleep(RETRY).await;
        }
    };
    tokio::time::timeout(PATIENCE, done).await.unwrap();
}

/// What is handed over is not lost.
async fn a_replica_takes_over(cluster: &Cluster, store: &RedisStore) {
    const NAMES: &[&str] = &["{f}a", "b", "c"];
    let over = Arc::new(AtomicBool::new(false));
    let load = load(store, NAMES, &over);
    let owner = cluster.first_owner_of(cluster.slot_of("{f}").unwrap());
    cluster.fail_over_to(owner + 3).unwrap();
    reaches(store, BreakerState::Healthy).await;
    let decided = async {
        while store.decide(&plan_of(NAMES, MANY)).await.is_err() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, decided).await.unwrap();
    over.store(true, Ordering::Relaxed);
    let (admitted, failed) = load.await.unwrap();
    charged_once(store, NAMES, admitted + 1, &failed).await;
}

async fn a_master_is_lost(cluster: &Cluster, store: &RedisStore) {
    let before = cluster.first_owner_of(cluster.slot_of("{f}").unwrap());
    let lost = (before + 1) % 3;
    cluster.lose(lost).unwrap();
    let names: Vec<String> = (0..50).map(|number| format!("lost{number}")).collect();
    let recovered = async {
        for name in &names {
            while store.decide(&plan_of(&[name], MANY)).await.is_err() {
                sleep(Duration::from_millis(1)).await;
            }
        }
    };
    tokio::time::timeout(PATIENCE, recovered).await.unwrap();
    reaches(store, BreakerState::Healthy).await;
    let gone = cluster.nodes()[lost].addr().to_string();
    assert!(store.health().shards.iter().all(|shard| shard.address != gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_starts_while_one_server_is_lost_learns_the_secret_and_asks_the_others() {
    let cluster = Cluster::start().unwrap();
    let owner = |key: &str| cluster.first_owner_of(cluster.slot_of(key).unwrap());
    let lost = (owner("tg:@{all}secret") + 1) % 3;
    let proxy = Proxy::to(cluster.nodes()[lost].addr()).unwrap();
    proxy.set(Fault::Refuse);
    cluster.announce(lost, proxy.addr().port()).unwrap();
    let store = RedisStore::connect(&config(&cluster));
    store.secret(PATIENCE).await.unwrap();
    let names: Vec<String> = (0..20).map(|number| format!("n{number}")).collect();
    let answering = names.iter().filter(|name| owner(&format!("tg:{name}")) != lost);
    for name in answering {
        let asked = async {
            while store.decide(&plan_of(&[name], MANY)).await.is_err() {
                sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(PATIENCE, asked).await.unwrap();
    }
    assert!(!store.health().state().allows_calls());
}
