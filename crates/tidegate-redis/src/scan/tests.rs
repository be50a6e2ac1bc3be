use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{
    Spec, calendar, concurrency, fixed_window, quota, sliding_counter, sliding_window,
    token_bucket, total,
};
use tidegate::engine::plan::{Enforcement, Level, Mode, Plan};
use tidegate::engine::store::Store as _;
use tidegate_testkit::servers::{Reply, Server};

use super::*;
use crate::codec::{Command, Response};
use crate::config::Config;
use crate::loans::LoanRequest;

const HOUR_US: u64 = 3_600_000_000;

fn units(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

fn specs() -> [Spec; 7] {
    let (limit, window_us) = (units(10), HOUR_US);
    // A month that is not over for as long as anybody runs this.
    let (start_us, end_us, next_end_us) = (0, 1 << 51, (1 << 51) + 31 * 24 * HOUR_US);
    [
        Spec::TokenBucket(token_bucket::Spec { count: limit, period_us: HOUR_US, burst: limit }),
        Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
        Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
        Spec::FixedWindow(fixed_window::Spec { limit, window_us: 1 << 51 }),
        Spec::Quota(quota::Spec {
            limit,
            unit: calendar::Unit::Month,
            previous_us: 0,
            start_us,
            end_us,
            next_end_us,
        }),
        Spec::Concurrency(concurrency::Spec { places: limit, lease_us: HOUR_US }),
        Spec::Total(total::Spec { limit }),
    ]
}

fn charge(name: &str, spec: Spec) -> Plan {
    let enforcement = Enforcement::Reject;
    let level = Level { cost: units(3), enforcement, ..Level::of_key(1, Key(1), spec) };
    Plan {
        mode: Mode::Charge,
        now: Now { steady_us: 0, unix_us: 0 },
        holder: 7,
        levels: [level].into_iter().collect(),
        names: vec![name.into()],
    }
}

async fn started() -> (Server, RedisStore) {
    let server = Server::start().unwrap();
    let store = RedisStore::connect(&patient(&server));
    assert!(store.ready(PATIENCE * 10).await);
    (server, store)
}

fn patient(server: &Server) -> Config {
    Config::parse(&server.url()).unwrap().timeout(PATIENCE * 10).unwrap()
}

/// All pages, and how many there were.
async fn all(store: &RedisStore, pattern: &str, count: usize) -> (Vec<StoredKey>, usize) {
    let (mut found, mut pages, mut from) = (Vec::new(), 0, Some(Cursor::default()));
    while let Some(cursor) = from {
        let page = store.scan(pattern, cursor, count).await.unwrap();
        found.extend(page.keys);
        from = page.next;
        pages += 1;
    }
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found.dedup_by(|one, other| one.name == other.name);
    (found, pages)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_algorithm_is_read_with_the_numbers_that_it_was_charged_under() {
    let (_server, store) = started().await;
    for (place, spec) in specs().into_iter().enumerate() {
        let name: Arc<str> = format!("p:l:{place}").into();
        store.decide(&charge(&name, spec)).await.unwrap();
        let inspected = store.inspect(&[name]).await.unwrap();
        let usage = inspected[0].as_ref().unwrap().usage.as_ref().unwrap();
        assert_eq!(usage.paces.len(), 1);
        assert_eq!(usage.paces[0].spec, spec);
        let left = usage.paces[0].reading.available;
        assert!(left >= units(7) && left < units(8), "{spec:?} leaves {left}");
        assert_eq!(usage.ends_in_us.is_none(), matches!(spec, Spec::Total(_)), "{usage:?}");
    }
    assert_eq!(store.inspect(&["p:l:none".into()]).await.unwrap(), [None]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_two_paces_tells_both_the_strictest_first() {
    let (_server, store) = started().await;
    let [slow, fast] = [HOUR_US, HOUR_US / 60]
        .map(|window_us| Spec::SlidingWindow(sliding_window::Spec { limit: units(10), window_us }));
    store.decide(&charge("k", slow)).await.unwrap();
    store.decide(&charge("k", fast)).await.unwrap();
    let inspected = store.inspect(&["k".into()]).await.unwrap();
    let usage = inspected[0].as_ref().unwrap().usage.as_ref().unwrap();
    let mut windows: Vec<_> = usage.paces.iter().map(|pace| pace.spec.window_us()).collect();
    windows.sort();
    assert_eq!(windows, [Some(HOUR_US / 60), Some(HOUR_US)]);
    assert!(usage.paces[0].reading.available <= usage.paces[1].reading.available);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nodes_have_borrowed_is_missing_from_what_is_left() {
    let (_server, store) = started().await;
    let (name, bucket) = (Arc::<str>::from("lent"), specs()[0]);
    let request = LoanRequest {
        level: Level::of_key(1, Key(1), bucket),
        name: Some(Arc::clone(&name)),
        wish: units(4).micros(),
        parts: 1,
        least: 1,
        reports: Vec::new(),
        sent_us: 0,
    };
    assert!(matches!(store.execute(Command::Lend(Arc::new(request))).await, Ok(Response::Lent(_))));
    let inspected = store.inspect(&[name]).await.unwrap();
    let usage = inspected[0].as_ref().unwrap().usage.as_ref().unwrap();
    assert_eq!(usage.paces[0].spec, bucket);
    assert_eq!(usage.paces[0].reading.available, units(6), "however long it takes to fill");
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_find_every_state_that_matches_and_nothing_of_the_deployments_own() {
    let (server, store) = started().await;
    store.secret(PATIENCE).await.unwrap();
    let total = specs()[6];
    for key in 0..250 {
        store.decide(&charge(&format!("p:l:{key:03}"), total)).await.unwrap();
    }
    store.decide(&charge("@odd", total)).await.unwrap();
    server.command(&["SET", "other:p:l:999", "x"]).unwrap();
    let (found, pages) = all(&store, "p:l:*", 10).await;
    assert!(pages > 5, "{pages}");
    let names: Vec<String> = found.iter().map(|found| found.name.clone()).collect();
    let expected: Vec<String> = (0..250).map(|key| format!("p:l:{key:03}")).collect();
    assert_eq!(names, expected);
    let (everything, _) = all(&store, "*", 1_000).await;
    assert_eq!(everything.len(), 251, "the secret and the nodes are no states");
    assert!(everything.iter().any(|found| found.name == "@odd"));
    let (odd, _) = all(&store, "@odd", 10).await;
    assert_eq!(odd.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_read_is_told_and_can_be_deleted() {
    let (server, store) = started().await;
    server.command(&["SET", "tg:a", "nonsense"]).unwrap();
    server.command(&["SADD", "tg:b", "nonsense"]).unwrap();
    server.command(&["SET", "tg:c", ""]).unwrap();
    let (found, _) = all(&store, "*", 10).await;
    let unreadable: Vec<&str> = found
        .iter()
        .filter(|found| found.usage.is_err())
        .map(|found| found.name.as_str())
        .collect();
    assert_eq!(unreadable, ["a", "b", "c"], "{found:?}");
    let names: Vec<Arc<str>> = ["a", "b", "c", "d", "@secret"].map(Arc::from).to_vec();
    store.secret(PATIENCE).await.unwrap();
    assert_eq!(store.delete(&names).await.unwrap(), 3);
    let kept = server.command(&["EXISTS", "tg:@secret"]).unwrap();
    assert_eq!(kept, Reply::Integer(1), "the secret is not to be had");
}

#[tokio::test(flavor = "multi_thread")]
async fn inspecting_works_after_the_server_forgot_its_scripts_and_fails_when_it_is_gone() {
    let (server, store) = started().await;
    store.decide(&charge("k", specs()[6])).await.unwrap();
    assert!(store.inspect(&["k".into()]).await.unwrap()[0].is_some());
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    assert!(store.inspect(&["k".into()]).await.unwrap()[0].is_some());
    server.kill().unwrap();
    assert!(store.inspect(&["k".into()]).await.is_err());
    assert!(store.scan("*", Cursor::default(), 10).await.is_err());
}

#[test]
fn a_cursor_is_read_as_it_was_written() {
    let cursor = Cursor { shard: 2, at: u64::MAX };
    assert_eq!(cursor.to_string().parse(), Ok(cursor));
    for text in ["", "5", "-", "1-", "-1", "1-x", "1-1-1"] {
        assert_eq!(text.parse::<Cursor>(), Err(CursorError), "{text}");
    }
}
