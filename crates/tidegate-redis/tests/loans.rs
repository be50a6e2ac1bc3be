//! The script lends as a naive bucket does, number by number, and never more than there is.
//!
//! Random loans, reports, returns and charges go to both, with reports that lie, come late or come
//! again, over many epochs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::Commands;
use server::Server;
use tidegate::Amount;
use tidegate::clock::{Now, micros};
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, Verdict, token_bucket};
use tidegate::engine::plan::{Enforcement, Level, Mode, Plan};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::{Amendment, Answer, Change, Store};
use tidegate_redis::loans::{LoanReply, LoanReport, LoanRequest};
use tidegate_redis::script_store::ScriptStore;
use tidegate_testkit::block_on;
use tidegate_testkit::lender::{EPOCH_US, LASTS_US, Lender};

/// Somewhere in 2026, not at the edge of an epoch.
const START_US: u64 = 1_767_603_612_345_678;
const UNIT: u64 = 1_000_000;

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Charge(u64),
    Lend { wish: u64, parts: u64, least: u64, reports: Vec<(u64, u64, u64)> },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let wait = prop_oneof![0..1_000_u64, 0..2 * UNIT, 0..3 * EPOCH_US];
    let amount = || prop_oneof![(0..6_u64).prop_map(|units| units * UNIT), 0..9 * UNIT];
    // How many epochs ago, what was spent, what is returned.
    let report = (0..4_u64, amount(), amount());
    let lend = (amount(), 1..9_u64, 0..2 * UNIT, prop::collection::vec(report, 0..3));
    let step = prop_oneof![
        3 => wait.prop_map(Step::Wait),
        3 => amount().prop_map(Step::Charge),
        4 => lend.prop_map(|(wish, parts, least, reports)| Step::Lend { wish, parts, least, reports }),
    ];
    prop::collection::vec(step, 1..40)
}

fn specs() -> impl Strategy<Value = token_bucket::Spec> {
    let counts = prop_oneof![(1..8_u64).prop_map(|units| units * UNIT), 1..8 * UNIT];
    let periods = prop_oneof![Just(UNIT), 1..60 * UNIT, Just(86_400 * UNIT)];
    (counts, periods, 1..=40_u64).prop_map(|(count, period_us, burst)| token_bucket::Spec {
        count: amount(count),
        period_us,
        burst: amount(burst * UNIT),
    })
}

fn amount(micros: u64) -> Amount {
    Amount::from_micros(micros).unwrap()
}

fn level(key: u128, spec: token_bucket::Spec, cost: u64) -> Level {
    Level {
        limit: 0,
        family: 7,
        key: Key(key),
        spec: Spec::TokenBucket(spec),
        cost: amount(cost),
        refundable: false,
        reserved: false,
        leased: true,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    }
}

/// One key of the script, at a time that is told.
struct World {
    store: ScriptStore,
    level: Level,
    now_us: u64,
}

impl World {
    fn new(store: ScriptStore, key: u128, spec: token_bucket::Spec) -> Self {
        Self { store, level: level(key, spec, 0), now_us: START_US }
    }

    fn now(&self) -> Now {
        Now { steady_us: self.now_us, unix_us: self.now_us }
    }

    fn charge(&self, cost: u64) -> Answer {
        let mut plan = Plan {
            mode: Mode::Charge,
            now: self.now(),
            holder: 1,
            levels: [Level { cost: amount(cost), ..self.level }].into_iter().collect(),
            names: Vec::new(),
        };
        plan.now = self.now();
        block_on(self.store.decide(&plan)).unwrap()
    }

    fn loan(&self, wish: u64, reports: Vec<LoanReport>) -> LoanRequest {
        LoanRequest {
            level: self.level,
            name: None,
            wish,
            parts: 1,
            least: 0,
            reports,
            sent_us: self.now_us,
        }
    }

    fn lend(&self, wish: u64, reports: Vec<LoanReport>) -> LoanReply {
        self.store.lend(self.now(), self.loan(wish, reports)).unwrap()
    }

    fn amend(&self, charged_at_us: u64, change: Change) -> bool {
        let level = Level { cost: amount(UNIT), ..self.level };
        let amendment = Amendment { level, name: None, charged_at_us, holder: 1, change };
        block_on(self.store.amend(self.now(), &[amendment])).unwrap()[0]
    }
}

fn ten_per_second() -> token_bucket::Spec {
    token_bucket::Spec { count: amount(10 * UNIT), period_us: UNIT, burst: amount(100 * UNIT) }
}

#[test]
fn the_script_lends_as_a_naive_bucket_does() {
    let (mut server, keys) = (Server::start(), Cell::new(0));
    let mut world =
        World::new(ScriptStore::new(server.connect(), "tg:").unwrap(), 0, ten_per_second());
    let mut runner = TestRunner::new(Config { cases: 400, ..Config::default() });
    let world = std::cell::RefCell::new(&mut world);
    let run = runner.run(&(specs(), steps()), |(spec, steps)| {
        keys.set(keys.get() + 1);
        let mut world = world.borrow_mut();
        (world.level, world.now_us) = (level(keys.get(), spec, 0), START_US);
        let mut naive = Lender::new(spec);
        for step in steps {
            follow(&mut world, &mut naive, &step)?;
            prop_assert_eq!(naive.check(), Ok(()));
        }
        Ok(())
    });
    run.unwrap();
}

fn follow(world: &mut World, naive: &mut Lender, step: &Step) -> Result<(), TestCaseError> {
    match step {
        Step::Wait(us) => world.now_us += us,
        Step::Charge(cost) => {
            let answer = world.charge(*cost);
            let reply = answer.replies[0];
            let fits = naive.charge(world.now_us, *cost);
            prop_assert_eq!(reply.verdict == Verdict::Allowed, fits, "{:?}", reply);
            prop_assert_eq!(reply.reading.available.micros(), naive.available());
            if let Verdict::Denied { retry_after: Some(wait) } = reply.verdict {
                let wait_us = micros(wait);
                let exact_us = naive.fits_after_us(*cost, wait_us);
                prop_assert_eq!(exact_us, Some(wait_us), "the wait");
            }
            if let Some(reset_us) = reply.reading.reset_us {
                let full = world.level.spec.capacity().micros();
                prop_assert_eq!(naive.fits_after_us(full, reset_us), Some(reset_us), "the reset");
            }
        }
        Step::Lend { wish, parts, least, reports } => {
            let now_epoch = world.now_us / EPOCH_US;
            let reports = reports.iter().map(|(ago, spent, returned)| LoanReport {
                epoch: now_epoch - ago,
                spent: *spent,
                returned: *returned,
            });
            let loan = LoanRequest {
                parts: *parts,
                least: *least,
                ..world.loan(*wish, reports.collect())
            };
            let lent = world.store.lend(world.now(), loan.clone()).unwrap();
            let expected = naive.lend(world.now_us, &loan);
            let expected = LoanReply { epoch: lent.epoch, now_us: world.now_us, ..expected };
            prop_assert_eq!(lent, expected);
            prop_assert!(lent.granted == 0 || lent.epoch == now_epoch);
        }
    }
    Ok(())
}

fn world() -> (Server, World) {
    let mut server = Server::start();
    let store = ScriptStore::new(server.connect(), "tg:").unwrap();
    (server, World::new(store, 1, ten_per_second()))
}

#[test]
fn what_is_lent_is_not_refilled_until_it_is_spent_or_its_epochs_are_over() {
    let (_server, mut world) = world();
    let lent = world.lend(40 * UNIT, Vec::new());
    assert_eq!((lent.granted, lent.lasts_us), (40 * UNIT, LASTS_US));
    assert_eq!((lent.available, lent.outstanding), (60 * UNIT, 40 * UNIT));
    world.now_us += 1_000_000;
    assert_eq!(world.lend(0, Vec::new()).available, 60 * UNIT, "it is full but for the loan");
    let spent = LoanReport { epoch: lent.epoch, spent: 30 * UNIT, returned: 0 };
    assert_eq!(world.lend(0, vec![spent]).outstanding, 10 * UNIT);
    world.now_us += 1_000_000;
    assert_eq!(world.lend(0, Vec::new()).available, 70 * UNIT, "what was spent is refilled");
    world.now_us = (lent.epoch + 2) * EPOCH_US - 1;
    assert_eq!(world.lend(0, Vec::new()).outstanding, 10 * UNIT);
    assert_eq!(world.lend(0, Vec::new()).available, 90 * UNIT);
    world.now_us += 1;
    assert_eq!(world.lend(0, Vec::new()).outstanding, 0, "no lease of it can be alive");
    world.now_us += 1_000_000;
    assert_eq!(world.lend(0, Vec::new()).available, 100 * UNIT);
}

#[test]
fn what_is_returned_can_be_spent_at_once_but_not_after_its_epochs() {
    let (_server, mut world) = world();
    let lent = world.lend(100 * UNIT, Vec::new());
    assert_eq!(lent.available, 0);
    let back = LoanReport { epoch: lent.epoch, spent: 0, returned: 60 * UNIT };
    assert_eq!(world.lend(0, vec![back]).available, 60 * UNIT);
    world.now_us = (lent.epoch + 2) * EPOCH_US;
    let late = LoanReport { returned: 40 * UNIT, ..back };
    let before = world.lend(0, Vec::new()).available;
    assert_eq!(world.lend(0, vec![late]).available, before);
}

#[test]
fn a_key_outlives_its_last_lease() {
    let (mut server, world) = world();
    let mut spec = ten_per_second();
    spec.count = amount(4_000_000 * UNIT);
    let world = World { level: level(9, spec, 0), ..world };
    world.lend(UNIT, Vec::new());
    let mut connection = server.connect();
    let key: String = connection.keys::<_, Vec<String>>("tg:*").unwrap().remove(0);
    let left_ms: u64 = connection.pttl(&key).unwrap();
    assert!(left_ms * 1_000 >= LASTS_US, "{left_ms}");
}

#[test]
fn exact_and_leased_limits_share_one_state() {
    let (_server, mut world) = world();
    world.charge(30 * UNIT);
    let lent = world.lend(20 * UNIT, Vec::new());
    assert_eq!(lent.available, 50 * UNIT);
    world.level.leased = false;
    assert_eq!(world.charge(UNIT).replies[0].reading.available.micros(), 49 * UNIT);
    let denied = world.charge(60 * UNIT).replies[0];
    assert_eq!(
        denied.verdict,
        Verdict::Denied { retry_after: Some(Duration::from_micros(1_100_000)) }
    );
}

#[test]
fn a_reset_forgives_everything_but_what_is_still_out() {
    let (_server, world) = world();
    world.charge(30 * UNIT);
    world.lend(20 * UNIT, Vec::new());
    assert!(world.amend(0, Change::Reset));
    let after = world.lend(0, Vec::new());
    assert_eq!((after.available, after.outstanding), (80 * UNIT, 20 * UNIT));
}

#[test]
fn a_refund_never_reaches_into_what_is_out() {
    let (_server, mut world) = world();
    let lent = world.lend(20 * UNIT, Vec::new());
    let refund = Change::Refund(amount(5 * UNIT));
    assert!(world.amend(world.now_us, refund));
    assert_eq!(world.lend(0, Vec::new()).available, 80 * UNIT, "it is not known to be spent");
    world.lend(0, vec![LoanReport { epoch: lent.epoch, spent: 20 * UNIT, returned: 0 }]);
    let charged_at_us = world.now_us;
    world.now_us += 100_000;
    world.amend(charged_at_us, refund);
    assert_eq!(world.lend(0, Vec::new()).available, 85 * UNIT, "one was refilled meanwhile");
}
