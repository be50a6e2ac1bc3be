//! The script answers as the memory store does, number by number, whatever is asked.
//!
//! Random plans and corrections go to both, at times that stand still, go on and go back, under
//! specs that change from one to the next.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use std::cell::RefCell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use server::Server;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{
    Spec, Verdict, calendar, ceiling, concurrency, fixed_window, quota, sliding_counter,
    sliding_window, token_bucket, total,
};
use tidegate::engine::plan::{Enforcement, Level, Mode, Plan};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::{Amendment, Answer, Change, Memory, Store};
use tidegate::engine::units::{Amount, DAY_US};
use tidegate_redis::Time;
use tidegate_redis::script_store::ScriptStore;
use tidegate_testkit::block_on;

/// Somewhere in 2026.
const START_US: u64 = 1_767_603_612_345_678;
/// What the script takes for the end of time.
const LAST_US: u64 = (1 << 53) - 1;
const KINDS: usize = 8;
const BUCKET: usize = 0;
const FIXED: usize = 3;
/// Two of each kind.
const KEYS: usize = 2 * KINDS;

/// Most of a case is about one key.
const FOCUS: usize = usize::MAX;

#[derive(Clone, Debug)]
struct Case {
    focus: usize,
    /// Whether all plans are such as the script decides without its machinery, if it can.
    plain: bool,
    /// Whether time goes in small steps only, so that debts, logs and accounts pile up.
    slow: bool,
    /// The numbers of all specs, but for a limit now and then; else they change all the time.
    steady: Option<Numbers>,
    steps: Vec<Step>,
}

#[derive(Clone, Debug)]
enum Step {
    Wait(i64),
    Decide(Vec<Wish>),
    Amend(Vec<Correction>),
}

/// A plan: whether to charge, who holds, which levels.
#[derive(Clone, Debug)]
struct Wish {
    mode: Mode,
    holder: u64,
    parts: Vec<Part>,
}

#[derive(Clone, Debug)]
struct Part {
    key: usize,
    numbers: Numbers,
    cost: u64,
    enforcement: Enforcement,
}

/// What a spec is made of, whatever its algorithm.
#[derive(Clone, Debug)]
struct Numbers {
    limit: u64,
    count: u64,
    window_us: u64,
    /// How far the planner's clock is from the store's.
    skew_us: i64,
}

#[derive(Clone, Debug)]
struct Correction {
    key: usize,
    numbers: Numbers,
    change: Change,
    /// Which of the charges so far, or how far from now.
    charge: Result<prop::sample::Index, i64>,
    holder: u64,
}

fn micros() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => (1..6_u64).prop_map(|units| units * 1_000_000),
        2 => 0..3_000_000_u64,
        1 => 0..10_000_000_000_000_u64,
    ]
}

fn step_us() -> impl Strategy<Value = i64> {
    prop_oneof![
        3 => 1..200_i64,
        3 => 200..30_000_i64,
        2 => 30_000..90_000_000_i64,
        1 => Just(86_400_000_000_i64),
        1 => -200..0_i64,
        1 => -90_000_000..0_i64,
    ]
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let window_us = prop_oneof![
        4 => (1..12_u64).prop_map(|tens| tens * 1_000),
        2 => 1..500_u64,
        1 => Just(60_000_000),
        1 => 1..1_000 * DAY_US,
    ];
    let skew_us = prop_oneof![3 => Just(0), 1 => -20_000..20_000_i64];
    (micros(), micros(), window_us, skew_us)
        .prop_map(|(limit, count, window_us, skew_us)| Numbers { limit, count, window_us, skew_us })
}

/// Few different ones, so that they come again.
fn few_numbers() -> impl Strategy<Value = Numbers> {
    let limits = prop::sample::select(&[1_500_000, 3_000_000, 40_000_000][..]);
    let counts = prop::sample::select(&[1_000_000, 2_000_000, 700_001][..]);
    let windows = prop::sample::select(
        &[700, 1_000, 3_333, 20_000, 21_000, 22_000, 23_000, 1_000_000, 60_000_000, 9, 60][..],
    );
    let few =
        (limits, counts, windows, any::<bool>()).prop_map(|(limit, count, window_us, full)| {
            // The script keeps buckets whose burst is their count in a form of their own.
            let count = if full { limit } else { count };
            Numbers { limit, count, window_us, skew_us: 0 }
        });
    prop_oneof![3 => few, 1 => numbers()]
}

fn wish() -> impl Strategy<Value = Wish> {
    let enforcement = prop_oneof![
        4 => Just(Enforcement::Reject),
        1 => Just(Enforcement::Warn),
        1 => Just(Enforcement::Shadow),
    ];
    let cost = prop_oneof![4 => Just(1_000_000), 2 => micros(), 1 => Just(0)];
    let part = (key(), few_numbers(), cost, enforcement)
        .prop_map(|(key, numbers, cost, enforcement)| Part { key, numbers, cost, enforcement });
    let mode = prop_oneof![5 => Just(Mode::Charge), 1 => Just(Mode::Peek)];
    (mode, prop_oneof![0..4_u64, Just(u64::MAX)], prop::collection::vec(part, 0..5))
        .prop_map(|(mode, holder, parts)| Wish { mode, holder, parts })
}

fn correction() -> impl Strategy<Value = Correction> {
    let amount = || micros().prop_map(|micros| Amount::from_micros(micros).unwrap());
    let change = prop_oneof![
        4 => amount().prop_map(Change::Refund),
        4 => amount().prop_map(Change::Surcharge),
        2 => amount().prop_map(Change::Debit),
        2 => Just(Change::Release),
        2 => Just(Change::Renew),
        1 => Just(Change::Reset),
    ];
    let charge =
        prop_oneof![4 => any::<prop::sample::Index>().prop_map(Ok), 1 => step_us().prop_map(Err)];
    (key(), few_numbers(), change, charge, prop_oneof![0..4_u64, Just(u64::MAX)]).prop_map(
        |(key, numbers, change, charge, holder)| Correction {
            key,
            numbers,
            change,
            charge,
            holder,
        },
    )
}

fn key() -> impl Strategy<Value = usize> {
    prop_oneof![2 => Just(FOCUS), 1 => 0..KEYS]
}

fn case() -> impl Strategy<Value = Case> {
    let step = prop_oneof![
        3 => step_us().prop_map(Step::Wait),
        6 => prop::collection::vec(wish(), 1..4).prop_map(Step::Decide),
        3 => prop::collection::vec(correction(), 1..4).prop_map(Step::Amend),
    ];
    let steady = prop::option::of(few_numbers());
    (0..KEYS, any::<bool>(), any::<bool>(), steady, prop::collection::vec(step, 1..120))
        .prop_map(|(focus, plain, slow, steady, steps)| Case { focus, plain, slow, steady, steps })
}

impl Case {
    const fn kind(&self, key: usize) -> usize {
        match key % 2 {
            0 if self.plain => BUCKET,
            1 if self.plain => FIXED,
            _ => key % KINDS,
        }
    }
}

impl Numbers {
    /// With a window of whole seconds, mostly, as policies have them and short values can say them.
    fn plain(self) -> Self {
        let window_us = match self.window_us {
            longest if longest > 60_000_000 => longest,
            other => (other % 7 + 1) * 1_000_000,
        };
        Self { window_us, ..self }
    }

    fn spec(&self, kind: usize, now_us: u64) -> Spec {
        let Self { window_us, skew_us, .. } = *self;
        let (limit, count) = (amount(self.limit), amount(self.count));
        match kind {
            // Only buckets cut what they owe, and so stay exact however large they are.
            0 if self.limit > 9_000_000_000_000 => {
                let burst = Amount::MAX;
                Spec::TokenBucket(token_bucket::Spec { count, period_us: window_us, burst })
            }
            0 => {
                Spec::TokenBucket(token_bucket::Spec { count, period_us: window_us, burst: limit })
            }
            1 => Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
            2 => Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
            3 => Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
            4 => {
                let (unit, length_us) = match window_us % 3 {
                    0 => (calendar::Unit::Day, 1_000),
                    1 => (calendar::Unit::Week, 7_000),
                    _ => (calendar::Unit::Month, 30_000),
                };
                let planned_us = now_us.saturating_add_signed(skew_us);
                let start_us = planned_us - planned_us % length_us;
                let end_us = start_us + length_us;
                let (previous_us, next_end_us) = (start_us - length_us, end_us + length_us);
                Spec::Quota(quota::Spec { limit, unit, previous_us, start_us, end_us, next_end_us })
            }
            5 => Spec::Concurrency(concurrency::Spec { places: limit, lease_us: window_us }),
            6 => Spec::Total(total::Spec { limit }),
            _ => Spec::Ceiling(ceiling::Spec { limit }),
        }
    }
}

fn amount(micros: u64) -> Amount {
    Amount::from_micros(micros).unwrap()
}

/// A limit for each key, so that the memory store clears no key away in passing.
fn level(key: usize, spec: Spec, cost: u64, enforcement: Enforcement) -> Level {
    let family = u64::try_from(key).unwrap();
    Level {
        limit: u16::try_from(key).unwrap(),
        family,
        key: Key(u128::from(family)),
        spec,
        cost: amount(cost),
        // Corrections are exact where they are to be expected.
        refundable: true,
        reserved: false,
        leased: false,
        enforcement,
        on_store_failure: OnStoreFailure::Local,
    }
}

/// Both stores, the time, and when each key was charged.
struct Pair<'s> {
    memory: Memory,
    redis: &'s ScriptStore,
    case: &'s Case,
    now_us: u64,
    charges: Vec<Vec<u64>>,
}

impl Pair<'_> {
    const fn now(&self) -> Now {
        Now { steady_us: self.now_us, unix_us: self.now_us }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Wait(us) => {
                let us = if self.case.slow { us % 300 } else { *us };
                self.now_us = self.now_us.saturating_add_signed(us);
            }
            Step::Decide(wishes) => self.decide(wishes),
            Step::Amend(corrections) => self.amend(corrections),
        }
    }

    fn spec(&self, key: usize, numbers: &Numbers) -> Spec {
        let numbers = match &self.case.steady {
            Some(steady) if numbers.window_us < 1_000 => {
                Numbers { limit: numbers.limit, ..steady.clone() }
            }
            Some(steady) => steady.clone(),
            None => numbers.clone(),
        };
        let numbers = if self.case.plain { numbers.plain() } else { numbers };
        numbers.spec(self.case.kind(key), self.now_us)
    }

    const fn key(&self, key: usize) -> usize {
        if key == FOCUS { self.case.focus } else { key }
    }

    /// All in one call to the script, one by one in memory.
    fn decide(&mut self, wishes: &[Wish]) {
        let plans: Vec<Plan> = wishes.iter().map(|wish| self.plan(wish)).collect();
        let answers = self.redis.decide_all(Time::Fixed(self.now_us), None, plans.clone()).unwrap();
        for (plan, answer) in plans.iter().zip(answers) {
            let expected = block_on(self.memory.decide(plan)).unwrap();
            for (level, reply) in plan.levels.iter().zip(&expected.replies) {
                if reply.charged {
                    self.charges[usize::from(level.limit)].push(reply.charged_at_us);
                }
            }
            let (found, expected) = (bounded(answer.unwrap()), bounded(expected));
            assert_eq!(found, expected, "\n{plan:#?}");
        }
    }

    fn plan(&self, wish: &Wish) -> Plan {
        let level = |part: &Part| {
            let key = self.key(part.key);
            let spec = self.spec(key, &part.numbers);
            level(key, spec, part.cost, part.enforcement)
        };
        let mut parts: Vec<&Part> = wish.parts.iter().collect();
        if self.case.plain {
            parts.sort_by_key(|part| self.key(part.key));
            parts.dedup_by_key(|part| self.key(part.key));
        }
        let levels = parts.iter().map(|part| level(part)).collect();
        let names = parts.iter().map(|part| name(self.key(part.key))).collect();
        Plan { mode: wish.mode, now: self.now(), holder: wish.holder, levels, names }
    }

    fn amend(&self, corrections: &[Correction]) {
        let amendment = |correction: &Correction| {
            let key = self.key(correction.key);
            let charged = &self.charges[key];
            let charged_at_us = match &correction.charge {
                Ok(index) if !charged.is_empty() => *index.get(charged),
                Ok(_) => self.now_us,
                Err(us) => self.now_us.saturating_add_signed(*us),
            };
            let spec = self.spec(key, &correction.numbers);
            let level = level(key, spec, 1_000_000, Enforcement::Reject);
            let (holder, change) = (correction.holder, correction.change);
            Amendment { level, name: Some(name(key)), charged_at_us, holder, change }
        };
        let amendments: Vec<Amendment> = corrections.iter().map(amendment).collect();
        let expected = block_on(self.memory.amend(self.now(), &amendments));
        let found = block_on(self.redis.amend(self.now(), &amendments));
        assert_eq!(found, expected, "\n{amendments:#?}");
    }
}

fn name(key: usize) -> std::sync::Arc<str> {
    format!("key:{key}").into()
}

/// The script knows no instant after the end of its time.
fn bounded(mut answer: Answer) -> Answer {
    let most_us = LAST_US - answer.now.unix_us;
    for reply in &mut answer.replies {
        if let Verdict::Denied { retry_after: Some(wait) } = &mut reply.verdict {
            *wait = Duration::from_micros(most_us).min(*wait);
        }
        reply.reading.reset_us = reply.reading.reset_us.map(|us| most_us.min(us));
    }
    answer
}

#[test]
fn the_script_answers_as_the_memory_store_does() {
    let mut server = Server::start();
    let redis = ScriptStore::new(server.connect(), "tg:").unwrap();
    let admin = RefCell::new(server.connect());
    let config = Config { failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(&case(), |case| {
        let () = redis::cmd("FLUSHALL").query(&mut *admin.borrow_mut()).unwrap();
        let memory = Memory::new();
        let families: Vec<u64> = (0..KEYS).map(|key| u64::try_from(key).unwrap()).collect();
        memory.announce(&families);
        let charges = vec![Vec::new(); KEYS];
        let mut pair = Pair { memory, redis: &redis, case: &case, now_us: START_US, charges };
        case.steps.iter().for_each(|step| pair.take(step));
        Ok(())
    });
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
