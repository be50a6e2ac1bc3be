//! Nearly all traffic is decided on the fast path of the script.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use server::Server;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, Verdict, fixed_window, sliding_window, token_bucket};
use tidegate::engine::plan::{Enforcement, Level, Mode, Plan};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::units::{Amount, SECOND_US};
use tidegate_redis::Time;
use tidegate_redis::script_store::ScriptStore;

const START_US: u64 = 1_767_603_612_345_678;

fn units(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

fn bucket(count: u64, seconds: u64, burst: u64) -> Spec {
    let (count, burst) = (units(count), units(burst));
    Spec::TokenBucket(token_bucket::Spec { count, period_us: seconds * SECOND_US, burst })
}

fn fixed(limit: u64, seconds: u64) -> Spec {
    let limit = units(limit);
    Spec::FixedWindow(fixed_window::Spec { limit, window_us: seconds * SECOND_US })
}

fn plan(mode: Mode, keys: &[(&str, Spec)]) -> Plan {
    let level = |(_, spec): &(&str, Spec)| Level {
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
    let names = keys.iter().map(|(name, _)| (*name).into()).collect();
    let now = Now { steady_us: 0, unix_us: 0 };
    Plan { mode, now, holder: 1, levels, names }
}

#[test]
fn buckets_and_fixed_windows_need_no_machinery() {
    let mut server = Server::start();
    let store = ScriptStore::fast_path_only(server.connect(), "tg:").unwrap();
    let specs = [
        bucket(3, 1, 3),
        bucket(2, 60, 5),
        bucket(100, 3_600, 100),
        bucket(1_000_000, 1, 2_000_000),
        fixed(3, 1),
        fixed(1_000_000, 86_400),
    ];
    // No key may be ahead of the time.
    let begins = (START_US..).step_by(1_000_000_000);
    for ((index, spec), begins_us) in specs.into_iter().enumerate().zip(begins) {
        let name = format!("key:{index}");
        let keys = [(&*name, spec), ("common", bucket(9, 1, 9)), ("all", fixed(1_000, 60))];
        let mut denied = 0;
        for gone_us in [0, 1, 333_333, 333_334, 2 * SECOND_US, 61 * SECOND_US, 200 * SECOND_US] {
            for levels in [&keys[..1], &keys] {
                let plans = vec![
                    plan(Mode::Charge, levels),
                    plan(Mode::Peek, levels),
                    plan(Mode::Charge, levels),
                ];
                let time = Time::Fixed(begins_us + gone_us);
                for answer in store.decide_all(time, None, plans).unwrap() {
                    let verdict = answer.unwrap().replies[0].verdict;
                    denied += usize::from(verdict != Verdict::Allowed);
                }
            }
        }
        assert!(denied > 0 || spec.capacity() > units(9), "{spec} never denied");
    }
}

#[test]
fn what_is_more_than_that_does() {
    let mut server = Server::start();
    let store = ScriptStore::fast_path_only(server.connect(), "tg:").unwrap();
    let window = sliding_window::Spec { limit: units(3), window_us: SECOND_US };
    let plans = vec![plan(Mode::Charge, &[("key", Spec::SlidingWindow(window))])];
    let error = store.decide_all(Time::Server, None, plans).unwrap_err();
    assert!(error.detail.contains("the general path"), "{error}");
}
