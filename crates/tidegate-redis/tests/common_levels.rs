//! Commands of one call that share keys are answered as if they came one by one.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use server::Server;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, fixed_window, sliding_window, token_bucket};
use tidegate::engine::plan::{Enforcement, Level, Mode, Plan};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::{Memory, Store};
use tidegate::engine::units::{Amount, SECOND_US};
use tidegate_redis::Time;
use tidegate_redis::script_store::ScriptStore;
use tidegate_testkit::block_on;

const START_US: u64 = 1_767_603_612_345_678;

/// What asks may say: of one kind, so that many say the same.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A user and everybody.
    Two,
    /// A user, a room and everybody, by twos.
    Three,
    /// Everybody alone.
    All,
    /// A user, and everybody without being refused.
    Shadow,
    /// As the first, and nothing is charged.
    Peek,
    /// As the first, with what the script decides another way.
    Slow,
}

/// A kind and a user.
type Wish = (Kind, usize);

fn wish() -> impl Strategy<Value = Wish> {
    let kind = prop_oneof![
        8 => Just(Kind::Two),
        4 => Just(Kind::Three),
        2 => Just(Kind::All),
        1 => Just(Kind::Shadow),
        1 => Just(Kind::Peek),
        1 => Just(Kind::Slow),
    ];
    (kind, 0_usize..3)
}

/// Calls, and how long it is to each.
fn calls() -> impl Strategy<Value = Vec<(u64, Vec<Wish>)>> {
    let waits = prop_oneof![Just(0), 1_u64..2_000_000];
    let call = prop_oneof![
        prop::collection::vec(wish(), 1..60),
        (0_usize..3, 1_usize..60).prop_map(|(user, asks)| vec![(Kind::Two, user); asks]),
    ];
    prop::collection::vec((waits, call), 1..5)
}

fn units(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

fn bucket(count: u64, seconds: u64, burst: u64) -> Spec {
    let (count, burst) = (units(count), units(burst));
    Spec::TokenBucket(token_bucket::Spec { count, period_us: seconds * SECOND_US, burst })
}

fn plan((kind, user): Wish, all: u64) -> Plan {
    let window_us = 2 * SECOND_US;
    let of_user = (user, bucket(10, 1, 10));
    let of_room =
        (3 + user % 2, Spec::FixedWindow(fixed_window::Spec { limit: units(25), window_us }));
    let of_all = (5, bucket(7, 3, all));
    let slow = (6, Spec::SlidingWindow(sliding_window::Spec { limit: units(90), window_us }));
    let (cost, keys) = match kind {
        Kind::Two | Kind::Shadow | Kind::Peek => (1, vec![of_user, of_all]),
        Kind::Three => (2, vec![of_all, of_user, of_room]),
        Kind::All => (1, vec![of_all]),
        Kind::Slow => (1, vec![slow, of_all]),
    };
    let level = |(key, spec): &(usize, Spec)| Level {
        limit: u16::try_from(*key).unwrap(),
        family: u64::try_from(*key).unwrap(),
        key: Key(u128::try_from(*key).unwrap()),
        spec: *spec,
        cost: units(cost),
        refundable: false,
        reserved: false,
        leased: false,
        enforcement: match kind {
            Kind::Shadow if *key == 5 => Enforcement::Shadow,
            _ => Enforcement::Reject,
        },
        on_store_failure: OnStoreFailure::Local,
    };
    let levels = keys.iter().map(level).collect();
    let names = keys.iter().map(|(key, _)| format!("key:{key}").into()).collect();
    let mode = if matches!(kind, Kind::Peek) { Mode::Peek } else { Mode::Charge };
    Plan { mode, now: Now { steady_us: 0, unix_us: 0 }, holder: 1, levels, names }
}

#[test]
fn asks_that_share_keys_are_answered_as_if_they_came_one_by_one() {
    let mut server = Server::start();
    let redis = ScriptStore::new(server.connect(), "tg:").unwrap();
    let admin = RefCell::new(server.connect());
    let config = Config { failure_persistence: None, ..Config::default() };
    let cases = (calls(), 5_u64..80);
    let result = TestRunner::new(config).run(&cases, |(calls, all)| {
        let () = redis::cmd("FLUSHALL").query(&mut *admin.borrow_mut()).unwrap();
        let (memory, mut now_us) = (Memory::new(), START_US);
        memory.announce(&[0, 1, 2, 3, 4, 5, 6]);
        for (waits_us, wishes) in calls {
            now_us += waits_us;
            let now = Now { steady_us: now_us, unix_us: now_us };
            let plans = wishes.iter().map(|wish| Plan { now, ..plan(*wish, all) });
            let plans: Vec<Plan> = plans.collect();
            let answers = redis.decide_all(Time::Fixed(now_us), None, plans.clone()).unwrap();
            for (plan, answer) in plans.iter().zip(answers) {
                let expected = block_on(memory.decide(plan)).unwrap();
                prop_assert_eq!(answer.unwrap(), expected, "\n{:#?}", plan);
            }
        }
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
