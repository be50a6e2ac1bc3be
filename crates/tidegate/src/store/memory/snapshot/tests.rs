//! A store that was stopped and started decides as one that never was.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::algorithm::{
    Spec, calendar, concurrency, fixed_window, quota, sliding_counter, sliding_window,
    token_bucket, total,
};
use crate::plan::{Enforcement, Level, Mode, PerLevel, Plan};
use crate::policy::OnStoreFailure;
use crate::store::{Amendment, Answer, Change, ImmediateStore as _};
use crate::units::Amount;

const KINDS: usize = 7;
const COUNTER: usize = 2;
const FAMILIES: [u64; KINDS] = [1, 2, 3, 4, 5, 6, 7];
/// Both windows divide it: sliding counters align theirs to the origin of steady time.
const ALIGNED_US: u64 = 3_000;
const START: Now = Now { steady_us: 5_000 * ALIGNED_US, unix_us: 9_000 * ALIGNED_US };

fn spec(kind: usize, slow: bool, unix_us: u64) -> Spec {
    let limit = Amount::from_units(3).unwrap();
    let window_us = if slow { 3_000 } else { 1_000 };
    let start_us = unix_us - unix_us % window_us;
    let end_us = start_us + window_us;
    match kind {
        0 => Spec::TokenBucket(token_bucket::Spec {
            count: limit,
            period_us: window_us,
            burst: limit,
        }),
        1 => Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
        COUNTER => Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
        3 => Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
        4 => Spec::Quota(quota::Spec {
            limit,
            unit: if slow { calendar::Unit::Month } else { calendar::Unit::Day },
            previous_us: start_us.saturating_sub(window_us),
            start_us,
            end_us,
            next_end_us: end_us + window_us,
        }),
        5 => Spec::Concurrency(concurrency::Spec { places: limit, lease_us: window_us }),
        _ => Spec::Total(total::Spec { limit: Amount::from_units(20).unwrap() }),
    }
}

#[derive(Clone, Copy, Debug)]
struct Step {
    advance_us: u64,
    kind: usize,
    levels: usize,
    slow: bool,
    key: u128,
    act: Act,
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Spend(u64),
    /// Corrects an earlier charge, by its place among all.
    Correct(usize, Change),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let amounts = || (0..2_000_000_u64).prop_map(|micros| Amount::from_micros(micros).unwrap());
    let changes = prop_oneof![
        4 => amounts().prop_map(Change::Refund),
        2 => amounts().prop_map(Change::Surcharge),
        2 => Just(Change::Release),
        2 => Just(Change::Renew),
        1 => Just(Change::Reset),
    ];
    let acts = prop_oneof![
        4 => prop_oneof![Just(1_000_000), 0..2_500_000_u64].prop_map(Act::Spend),
        1 => (0..100_usize, changes).prop_map(|(which, change)| Act::Correct(which, change)),
    ];
    let step = (0..700_u64, 0..KINDS, 1..=3_usize, any::<bool>(), 0..2_u128, acts);
    let step = step.prop_map(|(advance_us, kind, levels, slow, key, act)| Step {
        advance_us,
        kind,
        levels,
        slow,
        key,
        act,
    });
    prop::collection::vec(step, 1..40)
}

/// A store whose steady clock is ahead of the script's.
struct World {
    store: Memory,
    ahead_us: u64,
}

/// What was charged, by the script's clock.
#[derive(Clone, Copy)]
struct Charge {
    level: Level,
    holder: u64,
    at_us: u64,
}

impl World {
    fn new(ahead_us: u64) -> Self {
        let store = Memory::new();
        store.announce_now(&FAMILIES);
        Self { store, ahead_us }
    }

    fn now(&self, now: Now) -> Now {
        Now { steady_us: now.steady_us + self.ahead_us, ..now }
    }

    fn ahead_us_for(&self, level: &Level) -> u64 {
        if level.spec.uses_wall_clock() { 0 } else { self.ahead_us }
    }

    /// The answer, with its times as the script's clock would have it.
    fn spend(&self, plan: &Plan) -> Answer {
        let mut answer = self.store.answer(&Plan { now: self.now(plan.now), ..plan.clone() });
        answer.now = plan.now;
        for (reply, level) in answer.replies.iter_mut().zip(&plan.levels) {
            if reply.charged {
                reply.charged_at_us -= self.ahead_us_for(level);
            }
        }
        answer
    }

    fn correct(&self, now: Now, charge: Charge, change: Change) -> bool {
        let Charge { level, holder, at_us } = charge;
        let charged_at_us = at_us + self.ahead_us_for(&level);
        let amendment = Amendment { level, name: None, charged_at_us, holder, change };
        self.store.amend_now(self.now(now), &[amendment]).unwrap()[0]
    }

    /// Lets go of what a store may forget at any time.
    fn sweep(&self, now: Now) {
        let now = self.now(now);
        for table in self.store.limits.load().tables.values() {
            table.remove_where(|record| record.expires_us() <= record.time_us(now));
        }
    }

    /// All that it holds, by the script's clock.
    fn contents(&self, now: Now) -> Vec<String> {
        let shown = |saved: SavedKey| {
            let steady = !saved.ledger.uses_wall_clock();
            let SavedKey { family, key, created_us, charged_us, ledger } = saved;
            // A key is more than a number of such a value can be.
            let mut shown =
                json!({ "created_us": created_us, "charged_us": charged_us, "ledger": ledger });
            set_back(&mut shown, if steady { self.ahead_us } else { 0 });
            format!("{family} {key} {shown}")
        };
        let mut contents: Vec<String> = self.store.export(self.now(now)).map(shown).collect();
        contents.sort();
        contents
    }
}

/// Sets every instant of a state back, by its name.
fn set_back(value: &mut Value, us: u64) {
    const INSTANTS: [&str; 6] =
        ["at_us", "owing_since_us", "start_us", "expires_us", "created_us", "charged_us"];
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field.as_u64() {
                    Some(at_us) if INSTANTS.contains(&name.as_str()) => {
                        *field = at_us.saturating_sub(us).into();
                    }
                    _ => set_back(field, us),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| set_back(item, us)),
        _ => {}
    }
}

fn plan(step: &Step, now: Now, holder: u64, cost: u64) -> Plan {
    let level = |index: usize| {
        let kind = (step.kind + index) % KINDS;
        Level {
            limit: 0,
            family: FAMILIES[kind],
            key: Key::counted(step.key + 100 * kind as u128),
            spec: spec(kind, step.slow, now.unix_us),
            cost: Amount::from_micros(cost).unwrap(),
            refundable: false,
            reserved: false,
            leased: false,
            enforcement: Enforcement::Reject,
            on_store_failure: OnStoreFailure::Local,
        }
    };
    let levels = (0..step.levels).map(level).collect::<PerLevel<_>>();
    Plan { mode: Mode::Charge, now, holder, levels, names: Vec::new() }
}

/// Takes the steps in every world, which must agree on each of them.
fn take(steps: &[Step], worlds: &[&World], now: &mut Now, charges: &mut Vec<Charge>) {
    for step in steps {
        now.steady_us += step.advance_us;
        now.unix_us += step.advance_us;
        match step.act {
            Act::Spend(cost) => {
                let holder = charges.len() as u64;
                let plan = plan(step, *now, holder, cost);
                let answers: Vec<Answer> = worlds.iter().map(|world| world.spend(&plan)).collect();
                assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
                for (level, reply) in plan.levels.iter().zip(&answers[0].replies) {
                    if reply.charged {
                        charges.push(Charge { level: *level, holder, at_us: reply.charged_at_us });
                    }
                }
            }
            Act::Correct(which, change) if !charges.is_empty() => {
                let charge = charges[which % charges.len()];
                let hit: Vec<bool> =
                    worlds.iter().map(|world| world.correct(*now, charge, change)).collect();
                assert!(hit.iter().all(|one| *one == hit[0]), "{change:?} {hit:?}");
            }
            Act::Correct(..) => {}
        }
    }
}

/// Saved, written down, read and put back into a store of another process.
fn restart(from: &World, saved_at: Now, into: &World, now: Now) -> ImportSummary {
    let write = |saved: SavedKey| serde_json::to_string(&saved).unwrap();
    let written: Vec<String> = from.store.export(from.now(saved_at)).map(write).collect();
    let saved = written.iter().map(|text| serde_json::from_str(text).unwrap());
    into.store.import(from.now(saved_at), saved, into.now(now))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn a_restart_changes_no_decision(
        before in steps(), after in steps(), downtime_us in 0..4_000_u64,
        shift in 0..1_000_u64, unaligned_us in 0..ALIGNED_US,
    ) {
        let counts = |steps: &[Step]| steps.iter().any(|step| {
            (0..step.levels).any(|index| (step.kind + index) % KINDS == COUNTER)
        });
        let aligned = counts(&before) || counts(&after);
        let ahead_us = shift * ALIGNED_US + if aligned { 0 } else { unaligned_us };
        let (running, restarted) = (World::new(0), World::new(ahead_us));
        let (mut now, mut charges) = (START, Vec::new());
        take(&before, &[&running], &mut now, &mut charges);
        let saved_at = now;
        now.steady_us += downtime_us;
        now.unix_us += downtime_us;
        restart(&running, saved_at, &restarted, now);
        running.sweep(now);
        prop_assert_eq!(running.contents(now), restarted.contents(now));
        take(&after, &[&running, &restarted], &mut now, &mut charges);
    }
}

fn charged(world: &World, kind: usize, key: u128, now: Now) {
    let act = Act::Spend(0);
    let step = Step { advance_us: 0, kind, levels: 1, slow: true, key, act };
    assert!(world.spend(&plan(&step, now, 0, 2_000_000)).replies[0].charged);
}

fn later(now: Now, us: u64) -> Now {
    Now { steady_us: now.steady_us + us, unix_us: now.unix_us + us }
}

#[test]
fn a_wall_clock_that_went_back_counts_as_no_downtime() {
    let (old, new) = (World::new(0), World::new(0));
    charged(&old, 0, 1, START);
    let now = Now { steady_us: 77_000, unix_us: START.unix_us - 1_000 };
    restart(&old, START, &new, now);
    let reading = |world: &World, now: Now, key: u128| {
        let step = Step { advance_us: 0, kind: 0, levels: 1, slow: true, key, act: Act::Spend(0) };
        world.spend(&plan(&step, now, 0, 0)).replies[0].reading
    };
    assert_eq!(reading(&new, now, 1), reading(&old, START, 1));
    assert_ne!(reading(&new, now, 1), reading(&new, now, 2), "something is owed");
}

#[test]
fn keys_that_mean_nothing_by_then_are_left_out() {
    let (old, new) = (World::new(0), World::new(0));
    for kind in 0..KINDS {
        charged(&old, kind, 1, START);
    }
    assert_eq!(old.store.export(later(START, 10_000)).count(), 1, "only the total stays");
    let imported = restart(&old, START, &new, later(START, 10_000));
    assert_eq!(imported, ImportSummary { restored: 1, meaningless: 6, strangers: 0 });
    assert_eq!(new.store.keys(), 1);
}

#[test]
fn keys_of_limits_that_are_gone_are_left_out() {
    let (old, new) = (World::new(0), World::new(0));
    charged(&old, 0, 1, START);
    charged(&old, 1, 1, START);
    new.store.announce_now(&FAMILIES[..1]);
    let imported = restart(&old, START, &new, START);
    assert_eq!(imported, ImportSummary { restored: 1, meaningless: 0, strangers: 1 });
}

#[test]
fn a_smaller_store_keeps_each_limit_to_its_share_and_the_keys_that_last_longest() {
    let old = World::new(0);
    for key in 0..20 {
        charged(&old, 0, key, later(START, u64::try_from(key).unwrap()));
        charged(&old, 6, key, START);
    }
    let new = World { store: Memory::with_max_keys(10), ahead_us: 0 };
    new.store.announce_now(&[FAMILIES[0], FAMILIES[6]]);
    restart(&old, later(START, 20), &new, later(START, 20));
    assert_eq!(new.store.keys(), 10);
    assert_eq!(new.store.evicted_keys(), 30);
    let buckets = new.store.export(START).filter(|saved| saved.family == FAMILIES[0]);
    let mut keys: Vec<u128> = buckets.map(|saved| saved.key.number().into()).collect();
    keys.sort_unstable();
    assert_eq!(keys, [15, 16, 17, 18, 19]);
}

#[test]
fn every_key_is_exported_once_however_many_there_are() {
    let old = World::new(0);
    let many = 3 * 256 + 5;
    for key in 0..many {
        charged(&old, 0, key, START);
    }
    let mut keys: Vec<u128> =
        old.store.export(START).map(|saved| saved.key.number().into()).collect();
    keys.sort_unstable();
    assert!(keys.into_iter().eq(0..many));
}

#[test]
fn a_log_that_cannot_be_is_refused() {
    let log = |entries: &str| serde_json::from_str::<sliding_window::State>(entries);
    assert!(log(r#"[{"at_us":5,"cost_micros":1},{"at_us":6,"cost_micros":1}]"#).is_ok());
    assert!(log(r#"[{"at_us":5,"cost_micros":1},{"at_us":4,"cost_micros":1}]"#).is_err());
    let most = u64::MAX;
    let text =
        format!(r#"[{{"at_us":5,"cost_micros":{most}}},{{"at_us":6,"cost_micros":{most}}}]"#);
    assert!(log(&text).is_err());
    let total = serde_json::from_str::<total::Spec>(&format!(r#"{{"limit":{most}}}"#));
    assert!(total.is_err(), "an amount above the largest");
}
