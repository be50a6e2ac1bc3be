//! What the script leaves in the server: how large, for how long, and what it does not touch.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use std::cell::RefCell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::Connection;
use server::Server;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{
    Spec, Verdict, calendar, concurrency, fixed_window, quota, sliding_counter, sliding_window,
    token_bucket, total,
};
use tidegate::engine::plan::{Enforcement, Level, Mode, Plan};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::{Amendment, Answer, Change, Store};
use tidegate::engine::units::{Amount, SECOND_US};
use tidegate::{Limiter, Policy, Request};
use tidegate_redis::Time;
use tidegate_redis::script_store::ScriptStore;
use tidegate_testkit::block_on;

const LIMIT: Amount = match Amount::from_units(100) {
    Some(amount) => amount,
    None => Amount::MAX,
};
const WINDOW_US: u64 = 60 * SECOND_US;
const NOWHERE: Now = Now { steady_us: 0, unix_us: 0 };
/// What a key may last longer than its state means something.
const MARGIN_MS: u64 = 1_100;

const BUCKET: Spec =
    Spec::TokenBucket(token_bucket::Spec { count: LIMIT, period_us: WINDOW_US, burst: LIMIT });
const TOTAL: Spec = Spec::Total(total::Spec { limit: LIMIT });

/// A charge of one on each key.
fn plan(keys: &[(String, Spec)]) -> Plan {
    let level = |(_, spec): &(String, Spec)| Level {
        limit: 0,
        family: 0,
        key: Key(0),
        spec: *spec,
        cost: Amount::ONE,
        refundable: false,
        reserved: false,
        leased: false,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    };
    let levels = keys.iter().map(level).collect();
    let names = keys.iter().map(|(name, _)| name.as_str().into()).collect();
    Plan { mode: Mode::Charge, now: NOWHERE, holder: 1, levels, names }
}

fn one(name: &str, spec: Spec) -> Plan {
    plan(&[(name.to_owned(), spec)])
}

/// Charges one key by the server's clock.
fn charge(store: &ScriptStore, name: &str, spec: Spec) -> Answer {
    store.decide_all(Time::Server, None, vec![one(name, spec)]).unwrap().pop().unwrap().unwrap()
}

fn passing_specs(now_us: u64) -> [Spec; 6] {
    let (limit, window_us) = (LIMIT, WINDOW_US);
    let (start_us, end_us) = (now_us - SECOND_US, now_us + WINDOW_US);
    let (unit, next_end_us) = (calendar::Unit::Day, end_us + WINDOW_US);
    let previous_us = start_us.saturating_sub(WINDOW_US);
    [
        BUCKET,
        Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
        Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
        Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
        Spec::Quota(quota::Spec { limit, unit, previous_us, start_us, end_us, next_end_us }),
        Spec::Concurrency(concurrency::Spec { places: limit, lease_us: window_us }),
    ]
}

fn start() -> (Server, ScriptStore, Connection) {
    let mut server = Server::start();
    let store = ScriptStore::new(server.connect(), "tg:").unwrap();
    let admin = server.connect();
    (server, store, admin)
}

fn ttl_ms(admin: &mut Connection, key: &str) -> i64 {
    redis::cmd("PTTL").arg(key).query(admin).unwrap()
}

/// By the names that a policy gives its keys, where the limit's own has up to 12 characters. The
/// buckets are so slow that all of them are still there in the end.
#[test]
fn a_bucket_costs_at_most_180_bytes() {
    // So many that the server has long finished to make its tables larger for them.
    const KEYS: usize = 25_000;
    const POLICY: &str = "
tidegate: 1
name: bookings
limits:
  booking-user: { by: user, token_bucket: 100/day }
";
    let (_server, store, mut admin) = start();
    let used = |admin: &mut Connection| -> u64 {
        let memory: redis::InfoDict = redis::cmd("INFO").arg("memory").query(admin).unwrap();
        memory.get("used_memory").unwrap()
    };
    let policy = Policy::parse("bookings.yaml", POLICY).unwrap();
    let limiter = Limiter::builder().policy(policy).store(store).build().unwrap();
    let before = used(&mut admin);
    for charges in 1..3 {
        for user in 0..KEYS {
            let request = Request::new("GET", "/").user(format!("user-{user}"));
            let decision = block_on(limiter.check_async(&request)).unwrap();
            assert!(decision.is_allowed() && !decision.degraded);
        }
        let keys: usize = redis::cmd("DBSIZE").query(&mut admin).unwrap();
        assert_eq!(keys, KEYS);
        let bytes = (used(&mut admin) - before) / u64::try_from(KEYS).unwrap();
        assert!(bytes <= 180, "{bytes} bytes per bucket after {charges} charges");
    }
}

#[test]
fn keys_last_until_their_state_means_nothing() {
    let (_server, store, mut admin) = start();
    let now_us = charge(&store, "clock", TOTAL).now.unix_us;
    for (index, spec) in passing_specs(now_us).into_iter().enumerate() {
        let name = format!("key:{index}");
        let answer = charge(&store, &name, spec);
        let reset_ms = answer.replies[0].reading.reset_us.unwrap() / 1_000;
        let ttl_ms = u64::try_from(ttl_ms(&mut admin, &format!("tg:{name}"))).unwrap();
        // Since the charge a little time has gone by, which the margin covers.
        assert!(
            ttl_ms >= reset_ms && ttl_ms <= reset_ms + MARGIN_MS + rounded_ms(&spec),
            "{spec}: {ttl_ms} {reset_ms}"
        );
    }
    assert_eq!(ttl_ms(&mut admin, "tg:clock"), -1, "a total never ends by itself");
}

/// By how much the end of a key may be rounded up, so that it need not be moved with every charge.
fn rounded_ms(spec: &Spec) -> u64 {
    match spec {
        Spec::TokenBucket(_) => WINDOW_US / 1_000 / 32,
        Spec::FixedWindow(_) => 1_000,
        _ => 0,
    }
}

/// What plain charges write in its place, others write anew.
#[test]
fn a_key_outlasts_its_state_however_often_it_is_charged_and_corrected() {
    let (_server, store, mut admin) = start();
    let large = Amount::from_units(70_000).unwrap();
    let wide =
        Spec::TokenBucket(token_bucket::Spec { count: LIMIT, period_us: WINDOW_US, burst: large });
    let now_us = charge(&store, "clock", TOTAL).now.unix_us;
    for (name, spec) in [("tight", BUCKET), ("wide", wide), ("fixed", passing_specs(now_us)[3])] {
        for turn in 0..60 {
            let answer = charge(&store, name, spec);
            let mut reset_us = answer.replies[0].reading.reset_us.unwrap();
            if turn % 7 == 6 {
                let plan = one(name, spec);
                let refund = Amendment {
                    level: plan.levels[0],
                    name: Some(plan.names[0].clone()),
                    charged_at_us: answer.replies[0].charged_at_us,
                    holder: 1,
                    change: Change::Refund(Amount::from_micros(1 + turn).unwrap()),
                };
                assert!(block_on(store.amend(answer.now, &[refund])).unwrap()[0]);
                reset_us = reset_us.saturating_sub(SECOND_US);
            }
            let ttl_ms = u64::try_from(ttl_ms(&mut admin, &format!("tg:{name}"))).unwrap();
            assert!(ttl_ms >= reset_us / 1_000, "{name} {turn}: {ttl_ms} {reset_us}");
        }
    }
}

#[test]
fn a_key_that_was_refused_at_a_slower_pace_lasts_as_long_as_that_says() {
    let (_server, store, mut admin) = start();
    let bucket = |period_us| {
        let one = Amount::ONE;
        Spec::TokenBucket(token_bucket::Spec { count: one, period_us, burst: one })
    };
    let plans = vec![one("key", bucket(SECOND_US)), one("key", bucket(WINDOW_US))];
    let answers = store.decide_all(Time::Server, None, plans).unwrap();
    let refused = answers[1].as_ref().unwrap().replies[0];
    let wait = Verdict::Denied { retry_after: Some(Duration::from_micros(WINDOW_US)) };
    assert_eq!(refused.verdict, wait);
    assert!(ttl_ms(&mut admin, "tg:key") >= i64::try_from(WINDOW_US / 1_000).unwrap());
}

#[test]
fn a_state_that_means_nothing_leaves_no_key() {
    let (_server, store, mut admin) = start();
    for spec in [BUCKET, passing_specs(SECOND_US)[1], passing_specs(SECOND_US)[2], TOTAL] {
        let answer = charge(&store, "key", spec);
        let plan = one("key", spec);
        let refund = Amendment {
            level: plan.levels[0],
            name: Some(plan.names[0].clone()),
            charged_at_us: answer.replies[0].charged_at_us,
            holder: 1,
            change: Change::Refund(Amount::ONE),
        };
        assert!(block_on(store.amend(answer.now, &[refund])).unwrap()[0]);
        let exists: bool = redis::cmd("EXISTS").arg("tg:key").query(&mut admin).unwrap();
        assert!(!exists, "{spec}");
    }
}

/// What one pace owes is paid back when a refund comes, what another owes is not; then the clock is set
/// back behind the refund.
#[test]
fn a_bucket_that_is_charged_before_its_last_refund_can_still_be_read() {
    let (_server, store, _admin) = start();
    let quick =
        Spec::TokenBucket(token_bucket::Spec { count: LIMIT, period_us: SECOND_US, burst: LIMIT });
    let at = |us| Now { steady_us: us, unix_us: us };
    let charge = |us, spec| {
        let answers = store.decide_all(Time::Fixed(us), None, vec![one("key", spec)]).unwrap();
        answers.into_iter().next().unwrap().unwrap()
    };
    let began_us = 1_000 * SECOND_US;
    charge(began_us, BUCKET);
    let plan = one("key", quick);
    let refund = Amendment {
        level: plan.levels[0],
        name: Some(plan.names[0].clone()),
        charged_at_us: charge(began_us, quick).replies[0].charged_at_us,
        holder: 1,
        change: Change::Refund(Amount::from_micros(1).unwrap()),
    };
    let refunded_us = began_us + SECOND_US / 2;
    assert!(block_on(store.amend(at(refunded_us), &[refund])).unwrap()[0]);
    charge(refunded_us - 2, quick);
    assert!(charge(refunded_us - 1, quick).replies[0].charged);
}

#[test]
fn a_value_that_cannot_be_read_is_an_error_of_its_asks_alone() {
    let (_server, store, mut admin) = start();
    charge(&store, "total", TOTAL);
    let saved: Vec<u8> = redis::cmd("GET").arg("tg:total").query(&mut admin).unwrap();
    let halved = &saved[..saved.len() - 1];
    let doubled = [&saved[..], &[1]].concat();
    let foreign: [&[u8]; 7] =
        [b"", b"hello", b"17", b"\x01", b"\x41\0\0\0\0\0\0\0abcdef", halved, &doubled];
    for value in foreign {
        let () = redis::cmd("SET").arg("tg:key").arg(value).query(&mut admin).unwrap();
        for spec in [TOTAL, BUCKET].into_iter().chain(passing_specs(SECOND_US)) {
            let both = [("other".to_owned(), BUCKET), ("key".to_owned(), spec)];
            let plans = vec![one("other", BUCKET), plan(&both), one("other", BUCKET)];
            let answers = store.decide_all(Time::Server, None, plans).unwrap();
            let charged = [true, false, true];
            assert_eq!([0, 1, 2].map(|ask| answers[ask].is_ok()), charged, "{spec} on {value:?}");
        }
        let kept: Vec<u8> = redis::cmd("GET").arg("tg:key").query(&mut admin).unwrap();
        assert_eq!(kept, value);
    }
    let left = charge(&store, "other", BUCKET).replies[0].reading.available;
    assert!(left < Amount::from_units(80).unwrap(), "the others have been charged, {left} left");
}

/// A limit with a template for its keys has got another algorithm.
#[test]
fn a_value_of_another_algorithm_holds_for_a_minute_and_then_counts_as_none() {
    let (_server, store, mut admin) = start();
    let now_us = charge(&store, "clock", TOTAL).now.unix_us;
    let mut specs = passing_specs(now_us).to_vec();
    specs.push(TOTAL);
    let at = |us: u64, spec| {
        let decided = store.decide_all(Time::Fixed(us), None, vec![one("key", spec)]).unwrap();
        decided[0].as_ref().map(|answer| answer.replies[0].reading.available).ok()
    };
    let left = LIMIT.saturating_sub(Amount::ONE);
    for before in &specs {
        for after in specs.iter().filter(|spec| *spec != before) {
            let () = redis::cmd("DEL").arg("tg:key").query(&mut admin).unwrap();
            assert_eq!(at(now_us, *before), Some(left));
            // Nodes with the old policy and the new one, in turn: none begins afresh.
            assert_eq!(at(now_us + 59_999_999, *after), None, "{after} after {before}");
            assert!(at(now_us + 1, *before) < Some(left), "{before} beside {after}");
            let over_us = now_us + 60_000_001;
            assert_eq!(at(over_us, *after), Some(left), "{after} after {before}");
            // In one call, the first is another's to the second.
            let plans = vec![one("key", *after), one("key", *before), one("key", *after)];
            let answers = store.decide_all(Time::Fixed(over_us), None, plans).unwrap();
            let told: Vec<bool> = answers.iter().map(Result::is_ok).collect();
            assert_eq!(told, [true, false, true], "{after} in turn with {before}");
        }
    }
}

#[test]
fn a_reset_forgets_what_another_algorithm_left_behind() {
    let (_server, store, mut admin) = start();
    let answer = charge(&store, "key", TOTAL);
    let plan = one("key", BUCKET);
    let reset = Amendment {
        level: plan.levels[0],
        name: Some(plan.names[0].clone()),
        charged_at_us: 0,
        holder: 0,
        change: Change::Reset,
    };
    assert!(block_on(store.amend(answer.now, &[reset])).unwrap()[0]);
    let exists: bool = redis::cmd("EXISTS").arg("tg:key").query(&mut admin).unwrap();
    assert!(!exists);
}

#[test]
fn two_algorithms_in_one_ask_are_an_error_of_it_alone() {
    let (_server, store, _admin) = start();
    let both = [("key".to_owned(), TOTAL), ("key".to_owned(), BUCKET)];
    let answers =
        store.decide_all(Time::Server, None, vec![plan(&both), one("key", BUCKET)]).unwrap();
    assert!(answers[0].is_err() && answers[1].is_ok(), "{answers:?}");
}

#[test]
fn no_value_brings_the_script_down() {
    let (_server, store, admin) = start();
    let admin = RefCell::new(admin);
    let number = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        prop_oneof![
            Just(f64::NAN),
            Just(f64::INFINITY),
            Just(f64::NEG_INFINITY),
            Just(1e300),
            Just(-1e300),
            Just(0.3),
            any::<f64>()
        ]
        .prop_map(|number| [&[0xcb][..], &number.to_be_bytes()].concat()),
        any::<u64>().prop_map(|number| [&[0xcf][..], &number.to_be_bytes()].concat()),
        Just(vec![0xa0]),
        Just(vec![0x90]),
    ];
    let value = (any::<[u8; 8]>(), prop::collection::vec(number, 0..24), 0..7_usize, any::<bool>());
    let config = Config { cases: 4_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&value, |(mut head, numbers, kind, fitting)| {
        let specs = passing_specs(SECOND_US);
        let spec = specs.get(kind).copied().unwrap_or(TOTAL);
        if fitting {
            head[0] = u8::try_from(kind + 1).unwrap() | head[0] & 0x48;
        }
        let value = [&head[..], &numbers.concat()].concat();
        let () =
            redis::cmd("SET").arg("tg:key").arg(value).query(&mut *admin.borrow_mut()).unwrap();
        let plans = vec![one("key", spec), one("other", TOTAL)];
        let answers = store.decide_all(Time::Server, None, plans).unwrap();
        prop_assert!(answers[1].is_ok());
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}

#[test]
fn keys_of_another_type_are_left_alone() {
    let (_server, store, mut admin) = start();
    let () = redis::cmd("RPUSH").arg("tg:key").arg("mine").query(&mut admin).unwrap();
    let plans = vec![one("key", BUCKET), one("other", BUCKET)];
    let answers = store.decide_all(Time::Server, None, plans).unwrap();
    assert!(answers[0].as_ref().unwrap_err().detail.contains("WRONGTYPE"), "{answers:?}");
    assert!(answers[1].is_ok());
    let mine: Vec<String> =
        redis::cmd("LRANGE").arg("tg:key").arg(0).arg(-1).query(&mut admin).unwrap();
    assert_eq!(mine, ["mine"]);
}

#[test]
fn what_cannot_be_written_is_an_error_and_what_need_not_be_is_answered() {
    let (_server, store, mut admin) = start();
    let once = Spec::Total(total::Spec { limit: Amount::ONE });
    charge(&store, "full", once);
    let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", "1"]).query(&mut admin).unwrap();
    let plans = vec![one("key", BUCKET), one("full", once), one("key", BUCKET)];
    let answers = store.decide_all(Time::Server, None, plans).unwrap();
    assert!(answers[0].is_err() && answers[2].is_err(), "{answers:?}");
    let verdict = answers[1].as_ref().unwrap().replies[0].verdict;
    assert_eq!(verdict, Verdict::Denied { retry_after: None });
}
