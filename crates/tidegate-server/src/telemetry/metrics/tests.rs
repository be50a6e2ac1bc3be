//! The page as a scraper reads it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidegate::clock::{Clock as _, FakeClock, Now};
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{Amendment, AmendmentResults, Answer, ImmediateStore};
use tidegate::{Limiter, Request};
use tidegate_redis::{BreakerState, Health, NegativeCacheHealth, Reason, ShardHealth};

use super::*;
use crate::state::SaveStatus;

const LIMITS: &str = "a: {by: user, total: 4}, b: {by: user, total: 2, shadow: true},
    c: {by: user, total: 3, exceed: warn}";

fn policy(name: &str, limits: &str) -> Arc<Policy> {
    let text = format!(
        "{{tidegate: 1, name: {name}, version: '1\"2', identity: {{default_tier: free}},
          operations: {{see: GET /see, say: POST /say}}, limits: {{{limits}}}}}"
    );
    Arc::new(Policy::parse("p.yaml", &text).unwrap_or_else(|errors| panic!("{errors}")))
}

fn request(user: &str) -> Request<'_> {
    Request::new("GET", "/see").user(user)
}

fn limiter(policy: &Arc<Policy>) -> Limiter {
    Limiter::builder().policy(Arc::clone(policy)).build().unwrap()
}

/// Every sample of a page by its name and labels; panics where the format is broken.
fn samples(page: &str) -> BTreeMap<String, String> {
    assert!(page.ends_with('\n'));
    let (mut found, mut families) = (BTreeMap::new(), BTreeSet::new());
    let (mut family, mut kind) = ("", "");
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            family = help.split_once(' ').unwrap().0;
            assert!(families.insert(family), "{family} comes twice");
            let rest = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).unwrap();
            let (of, told) = rest.split_once(' ').unwrap();
            assert_eq!(of, family);
            assert!(["counter", "gauge", "histogram"].contains(&told), "{told}");
            assert_eq!(told == "counter", family.ends_with("_total"), "{family}");
            kind = told;
            continue;
        }
        let (series, value) = line.rsplit_once(' ').unwrap();
        let name = &series[..series.find('{').unwrap_or(series.len())];
        let suffix = name.strip_prefix(family).unwrap_or_else(|| panic!("{name} in {family}"));
        let suffixes: &[&str] =
            if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
        assert!(suffixes.contains(&suffix), "{line}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        check_labels(&series[name.len()..]);
        assert!(value.parse::<f64>().is_ok_and(f64::is_finite), "{line}");
        assert!(found.insert(series.to_owned(), value.to_owned()).is_none(), "{series} twice");
    }
    found
}

/// `{name="text",…}`, where quotes, backslashes and line ends in texts are escaped.
fn check_labels(labels: &str) {
    if labels.is_empty() {
        return;
    }
    let mut rest = labels.strip_prefix('{').and_then(|labels| labels.strip_suffix('}')).unwrap();
    loop {
        let (name, quoted) = rest.split_once("=\"").unwrap();
        assert!(!name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase()), "{name}");
        let mut escaped = false;
        let end = quoted.char_indices().find(|(_, character)| match (escaped, character) {
            (true, '\\' | '"' | 'n') => {
                escaped = false;
                false
            }
            (true, other) => panic!("\\{other} in {labels}"),
            (false, '\\') => {
                escaped = true;
                false
            }
            (false, character) => *character == '"',
        });
        match &quoted[end.unwrap().0 + 1..] {
            "" => return,
            next => rest = next.strip_prefix(',').unwrap(),
        }
    }
}

fn page(metrics: &Metrics) -> BTreeMap<String, String> {
    samples(&metrics.render(&Present::default()))
}

#[track_caller]
fn assert_sample(page: &BTreeMap<String, String>, series: &str, value: &str) {
    assert_eq!(page.get(series).map(String::as_str), Some(value), "{series} in {page:#?}");
}

#[test]
fn decisions_are_counted_by_operation_tier_outcome_and_limit() {
    let policy = policy("api", LIMITS);
    let (limiter, metrics) = (limiter(&policy), Metrics::new(1, &[Arc::clone(&policy)]));
    for _ in 0..5 {
        metrics.decided(&limiter.check(&request("u1")).unwrap(), 12);
    }
    let page = page(&metrics);
    let decided = |outcome| {
        format!("tidegate_decisions_total{{operation=\"see\",tier=\"free\",outcome=\"{outcome}\"}}")
    };
    assert_sample(&page, &decided("allowed"), "3");
    assert_sample(&page, &decided("warned"), "1");
    assert_sample(&page, &decided("limited"), "1");
    let hits = |limit, result| {
        format!("tidegate_limit_hits_total{{limit=\"{limit}\",result=\"{result}\"}}")
    };
    for (limit, result, count) in [
        ("a", "allowed", "4"),
        ("a", "denied", "1"),
        ("b", "allowed", "2"),
        ("b", "shadow_denied", "3"),
        ("c", "allowed", "3"),
        ("c", "warned", "2"),
        ("c", "denied", "0"),
    ] {
        assert_sample(&page, &hits(limit, result), count);
    }
    assert_sample(&page, "tidegate_policy_info{name=\"api\",version=\"1\\\"2\"}", "1");
    assert_sample(&page, "tidegate_decision_seconds_count", "5");
    assert_sample(&page, "tidegate_decision_seconds_sum", "0.00006");
    assert_sample(&page, "tidegate_store_state{shard=\"memory\",state=\"healthy\"}", "1");
    assert!(!page.keys().any(|series| series.contains("u1")));
}

/// The headroom of the limit `a`, as a scraper reads it at this time.
fn headroom(metrics: &Metrics, clock: &FakeClock) -> String {
    let present = Present { steady_us: clock.now().steady_us, ..Present::default() };
    samples(&metrics.render(&present)).remove("tidegate_headroom_ratio{limit=\"a\"}").unwrap()
}

#[test]
fn headroom_is_the_smallest_share_of_this_minute_and_the_one_before() {
    let policy = policy("api", "a: {by: user, total: 4}");
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let limiter = Limiter::builder().policy(Arc::clone(&policy)).clock(clock.clone());
    let (limiter, metrics) = (limiter.build().unwrap(), Metrics::new(1, &[policy]));
    let decide = |user| metrics.decided(&limiter.check(&request(user)).unwrap(), 1);
    assert_eq!(headroom(&metrics, &clock), "1");
    ["u1", "u1", "u1", "u2"].into_iter().for_each(decide);
    assert_eq!(headroom(&metrics, &clock), "0.25");
    clock.advance(Duration::from_secs(60));
    decide("u2");
    assert_eq!(headroom(&metrics, &clock), "0.25");
    clock.advance(Duration::from_secs(60));
    assert_eq!(headroom(&metrics, &clock), "0.5");
    decide("u3");
    assert_eq!(headroom(&metrics, &clock), "0.5");
    clock.advance(Duration::from_secs(60));
    assert_eq!(headroom(&metrics, &clock), "0.75");
    clock.advance(Duration::from_secs(60));
    assert_eq!(headroom(&metrics, &clock), "1");
}

#[test]
fn scrapers_do_not_disturb_each_other() {
    let policy = policy("api", "a: {by: user, total: 4}");
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let limiter = Limiter::builder().policy(Arc::clone(&policy)).clock(clock.clone());
    let (limiter, metrics) = (limiter.build().unwrap(), Metrics::new(1, &[policy]));
    metrics.decided(&limiter.check(&request("u1")).unwrap(), 1);
    assert_eq!(headroom(&metrics, &clock), "0.75");
    assert_eq!(headroom(&metrics, &clock), "0.75");
}

#[test]
fn counters_go_on_over_a_reload_even_for_what_the_old_policy_still_decides() {
    let old = policy("api", "a: {by: user, total: 9}, gone: {by: user, total: 9}");
    let (limiter, metrics) = (limiter(&old), Metrics::new(1, &[Arc::clone(&old)]));
    metrics.decided(&limiter.check(&request("u1")).unwrap(), 1);
    let late = limiter.check(&request("u1")).unwrap();

    let new = policy("api", "fresh: {by: user, total: 9}, a: {by: user, total: 9}");
    metrics.load(&[Arc::clone(&new)]);
    limiter.replace_policies(vec![new]).unwrap();
    drop(old);
    metrics.decided(&late, 1);
    drop(late);
    metrics.decided(&limiter.check(&request("u1")).unwrap(), 1);

    let shown = page(&metrics);
    assert_sample(&shown, "tidegate_limit_hits_total{limit=\"a\",result=\"allowed\"}", "3");
    assert_sample(&shown, "tidegate_limit_hits_total{limit=\"fresh\",result=\"allowed\"}", "1");
    assert!(!shown.keys().any(|series| series.contains("gone")));
    let decisions = "tidegate_decisions_total{operation=\"see\",tier=\"free\",outcome=\"allowed\"}";
    assert_sample(&shown, decisions, "3");

    metrics.load(&limiter.policies());
    assert_eq!(metrics.policies.load().counters.len(), 1, "an old policy that is gone is kept");
    assert_sample(&page(&metrics), decisions, "3");
}

#[test]
fn a_policy_that_decides_before_it_is_announced_loses_no_count() {
    let old = policy("api", "a: {by: user, total: 9}");
    let (limiter, metrics) = (limiter(&old), Metrics::new(1, &[old]));
    let new = policy("api", "a: {by: user, total: 9}, b: {by: user, total: 9}");
    limiter.replace_policies(vec![Arc::clone(&new)]).unwrap();
    metrics.decided(&limiter.check(&request("u1")).unwrap(), 1);
    metrics.decided(&limiter.check(&request("u1")).unwrap(), 1);
    metrics.load(&[new]);
    let shown = page(&metrics);
    for limit in ["a", "b"] {
        let series = format!("tidegate_limit_hits_total{{limit=\"{limit}\",result=\"allowed\"}}");
        assert_sample(&shown, &series, "2");
    }
}

#[test]
fn several_policies_are_told_apart_by_a_label() {
    let (one, two) =
        (policy("one", "a: {by: user, total: 9}"), policy("two", "a: {by: user, total: 9}"));
    let limiter =
        Limiter::builder().policy(Arc::clone(&one)).policy(Arc::clone(&two)).build().unwrap();
    let metrics = Metrics::new(1, &[one, two]);
    metrics.decided(&limiter.check(&request("u1").policy("two")).unwrap(), 1);
    let shown = page(&metrics);
    let hits = |policy| {
        format!("tidegate_limit_hits_total{{limit=\"a\",result=\"allowed\",policy=\"{policy}\"}}")
    };
    assert_sample(&shown, &hits("one"), "0");
    assert_sample(&shown, &hits("two"), "1");
}

#[test]
fn every_decision_of_many_threads_is_counted_while_policies_are_replaced() {
    const EACH: u64 = 5_000;
    let first = policy("api", LIMITS);
    let (limiter, metrics) = (limiter(&first), Metrics::new(1, &[first]));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let deciders = [0; 4].map(|_| {
            scope.spawn(|| {
                for _ in 0..EACH {
                    metrics.decided(&limiter.check(&request("u1")).unwrap(), 1);
                }
            })
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let next = policy("api", LIMITS);
                metrics.load(&[Arc::clone(&next)]);
                limiter.replace_policies(vec![next]).unwrap();
            }
        });
        for decider in deciders {
            decider.join().unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let shown = page(&metrics);
    let total = |prefix: &str| -> u64 {
        let matching = shown.iter().filter(|(series, _)| series.starts_with(prefix));
        matching.map(|(_, value)| value.parse::<u64>().unwrap()).sum()
    };
    assert_eq!(total("tidegate_decisions_total{"), 4 * EACH);
    assert_eq!(total("tidegate_limit_hits_total{limit=\"a\""), 4 * EACH);
    assert_eq!(total("tidegate_decision_seconds_count"), 4 * EACH);
}

struct Broken;

impl ImmediateStore for Broken {
    fn decide_now(&self, _: &Plan) -> Result<Answer, StoreError> {
        Err(StoreError { transient: true, detail: "gone".to_owned() })
    }
    fn amend_now(&self, _: Now, _: &[Amendment]) -> Result<AmendmentResults, StoreError> {
        Err(StoreError { transient: false, detail: "no".to_owned() })
    }
    fn announce_now(&self, _: &[u64]) {}
}

#[test]
fn a_lost_store_is_counted_by_reason() {
    let policy = policy("api", LIMITS);
    let limiter = Limiter::builder().policy(Arc::clone(&policy)).store(Broken).build().unwrap();
    let metrics = Metrics::new(1, &[policy]);
    metrics.decided(&limiter.check(&request("u1")).unwrap(), 1);
    metrics.store_failed(&limiter.store().amend_now(limiter_now(), &[]).unwrap_err());
    let shown = page(&metrics);
    assert_sample(&shown, "tidegate_store_errors_total{reason=\"unavailable\"}", "1");
    assert_sample(&shown, "tidegate_store_errors_total{reason=\"refused\"}", "1");
    assert_sample(&shown, "tidegate_store_fallback_total{reason=\"unavailable\"}", "1");
    assert_sample(&shown, "tidegate_store_fallback_total{reason=\"refused\"}", "0");
}

#[test]
fn calls_to_a_shared_store_are_timed_by_what_was_asked() {
    let metrics = Metrics::new(1, &[]);
    metrics.store_answered(StoreCall::Decide, 1_000);
    metrics.store_answered(StoreCall::Decide, 2_000);
    let shown = page(&metrics);
    assert_sample(&shown, "tidegate_store_seconds_count{op=\"decide\"}", "2");
    assert_sample(&shown, "tidegate_store_seconds_sum{op=\"decide\"}", "0.003");
    assert_sample(&shown, "tidegate_store_seconds_bucket{op=\"decide\",le=\"0.001\"}", "1");
    assert_sample(&shown, "tidegate_store_seconds_count{op=\"amend\"}", "0");
}

fn limiter_now() -> Now {
    Now { steady_us: 1, unix_us: 1 }
}

#[test]
fn what_is_there_right_now_is_shown() {
    let present = Present {
        steady_us: 0,
        store: Some(lost_store()),
        leases: LoanHealth::default(),
        active_keys: 2,
        evicted_keys: 1,
        waiting: 3,
        held: 6,
        marks: vec![("ban", 7, 8)],
        notices: NoticeCounts { delivered: 6, dropped: 7, waiting: 8, ..NoticeCounts::default() },
        state: Some(SaveStatus {
            saved_unix_us: Some(14_999_999),
            written_bytes: 15,
            failures: vec![("counters", "no space".to_owned())],
        }),
        connections: vec![("gateway", 4), ("admin", 5)],
    };
    let shown = samples(&Metrics::new(1, &[]).render(&present));
    let state = |state| format!("tidegate_store_state{{shard=\"r:1\",state=\"{state}\"}}");
    assert_sample(&shown, &state("open"), "1");
    assert_sample(&shown, &state("healthy"), "0");
    for (series, value) in [
        ("tidegate_store_changes_total{shard=\"r:1\",state=\"open\"}", "3"),
        ("tidegate_store_shard_errors_total{shard=\"r:1\",reason=\"timeout\"}", "8"),
        ("tidegate_store_queued{shard=\"r:1\"}", "4"),
        ("tidegate_notices_total{result=\"delivered\"}", "6"),
        ("tidegate_notices_total{result=\"dropped\"}", "7"),
        ("tidegate_notices_waiting", "8"),
        ("tidegate_store_calls_total{shard=\"r:1\"}", "9"),
        ("tidegate_store_known_refusals", "5"),
        ("tidegate_store_known_refusals_given_total", "6"),
        ("tidegate_store_hears_changes", "0"),
        ("tidegate_store_corrections_waiting", "10"),
        ("tidegate_store_corrections_lost_total", "11"),
        ("tidegate_store_owed_keys", "12"),
        ("tidegate_store_refunds_lost_total", "13"),
        ("tidegate_state_failing", "1"),
        ("tidegate_state_saved_timestamp_seconds", "14"),
        ("tidegate_state_written_bytes_total", "15"),
    ] {
        assert_sample(&shown, series, value);
    }
    assert_sample(&shown, "tidegate_active_keys", "2");
    assert_sample(&shown, "tidegate_evicted_keys_total", "1");
    assert_sample(&shown, "tidegate_waiting_requests", "3");
    assert_sample(&shown, "tidegate_held_answers", "6");
    assert_sample(&shown, "tidegate_marks{kind=\"ban\"}", "7");
    assert_sample(&shown, "tidegate_marks_refused_total{kind=\"ban\"}", "8");
    assert_sample(&shown, "tidegate_open_connections{listener=\"gateway\"}", "4");
    assert_sample(&shown, "tidegate_open_connections{listener=\"admin\"}", "5");
}

fn lost_store() -> SharedPresent {
    let shard = ShardHealth {
        address: "r:1".to_owned(),
        state: BreakerState::Open,
        since_us: 0,
        last_error: None,
        commands: 0,
        calls: 9,
        resends: 0,
        errors: Reason::ALL.map(|reason| (reason, if reason == Reason::Timeout { 8 } else { 0 })),
        changes: BreakerState::ALL
            .map(|state| (state, if state == BreakerState::Open { 3 } else { 0 })),
        queued: 4,
        latency_us: 0,
    };
    let health = Health {
        shards: vec![shard],
        lost_refunds: 13,
        nodes: None,
        negative_cache: NegativeCacheHealth {
            subscribed: false,
            refusals: 5,
            hits: 6,
            messages: 0,
        },
        foreign_nodes: 0,
    };
    SharedPresent { health, corrections: (10, 11), owed_keys: 12 }
}

#[test]
fn events_and_bans_are_counted_by_name() {
    let metrics = Metrics::new(1, &[]);
    for event in ["auth_failure", "limited", "limited"] {
        metrics.happened(event);
    }
    metrics.banned("brute-force");
    let shown = page(&metrics);
    assert_sample(&shown, "tidegate_events_total{event=\"auth_failure\"}", "1");
    assert_sample(&shown, "tidegate_events_total{event=\"limited\"}", "2");
    assert_sample(&shown, "tidegate_events_total{event=\"banned\"}", "0");
    assert_sample(&shown, "tidegate_bans_total{penalty=\"brute-force\"}", "1");
}

#[test]
fn what_a_store_was_charged_for_once_it_was_back_is_counted() {
    let metrics = Metrics::new(1, &[]);
    metrics.merged(3, 1);
    metrics.merged(4, 0);
    let shown = page(&metrics);
    assert_sample(&shown, "tidegate_store_merged_total{result=\"sent\"}", "7");
    assert_sample(&shown, "tidegate_store_merged_total{result=\"lost\"}", "1");
}

#[cfg(target_os = "linux")]
#[test]
fn the_process_tells_what_it_uses() {
    let shown = page(&Metrics::new(77, &[]));
    assert_sample(&shown, "process_start_time_seconds", "77");
    for name in ["process_resident_memory_bytes", "process_open_fds"] {
        assert!(shown[name].parse::<u64>().unwrap() > 0, "{name}");
    }
    assert!(shown.contains_key("process_cpu_seconds_total"));
}
