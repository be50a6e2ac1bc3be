//! Random steps, which the store must answer as the plain map does.

use proptest::prelude::*;

use super::naive::Naive;
use super::*;
use crate::algorithm::{
    Ledger, calendar, concurrency, fixed_window, quota, sliding_counter, sliding_window,
};
use crate::store::{Change, ImmediateStore as _};

const KINDS: u64 = 8;

/// Calendar windows end on quarters of an hour.
const QUARTER_US: u64 = 900_000_000;
/// Some steps before one does.
const START_US: u64 = QUARTER_US - 3_000;

/// A limit of an algorithm, at one of three paces or sizes.
fn spec(kind: u64, pace: u64, now_us: u64) -> Spec {
    let (limit, window_us) = (units(2 + pace), 700 * (1 + pace % 2));
    match kind {
        0 => bucket(2 + pace, window_us),
        1 => Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
        2 => total(40 + pace),
        3 => Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
        4 => Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
        5 => quota(limit, pace, QUARTER_US * (1 + pace % 2), now_us),
        6 => quota(limit, pace, window_us, now_us),
        _ => Spec::Concurrency(concurrency::Spec { places: limit, lease_us: window_us }),
    }
}

fn quota(limit: Amount, pace: u64, window_us: u64, now_us: u64) -> Spec {
    let start_us = now_us - now_us % window_us;
    let end_us = start_us + window_us;
    Spec::Quota(quota::Spec {
        limit,
        unit: if pace.is_multiple_of(2) { calendar::Unit::Day } else { calendar::Unit::Week },
        previous_us: start_us.saturating_sub(window_us),
        start_us,
        end_us,
        next_end_us: end_us + window_us,
    })
}

#[derive(Clone, Debug)]
struct Step {
    later_us: u64,
    back_us: u64,
    kind: u64,
    levels: u64,
    key: u64,
    pace: u64,
    act: Act,
}

#[derive(Clone, Debug)]
enum Act {
    Spend {
        cost: u64,
        peek: bool,
        warn: bool,
    },
    /// Corrects an earlier charge, by its place among all.
    Correct(usize, Change),
}

fn steps(keys: u64) -> impl Strategy<Value = Vec<Step>> {
    let amounts = || (0..3_000_000_u64).prop_map(|micros| Amount::from_micros(micros).unwrap());
    let changes = prop_oneof![
        4 => amounts().prop_map(Change::Refund),
        2 => amounts().prop_map(Change::Surcharge),
        1 => amounts().prop_map(Change::Debit),
        1 => Just(Change::Reset),
        2 => Just(Change::Renew),
        2 => Just(Change::Release),
    ];
    let costs = prop_oneof![Just(1_000_000), 0..2_500_000_u64];
    let acts = prop_oneof![
        6 => (costs, 0..8_u8, 0..8_u8)
            .prop_map(|(cost, peek, warn)| Act::Spend { cost, peek: peek == 0, warn: warn == 0 }),
        1 => (0..100_usize, changes).prop_map(|(which, change)| Act::Correct(which, change)),
    ];
    let paces = prop_oneof![5 => Just(0_u64), 1 => 0..3_u64];
    let back = prop_oneof![9 => Just(0_u64), 1 => 0..900_u64];
    let step = (0..300_u64, back, 0..KINDS, 1..=3_u64, 0..keys, paces, acts);
    let step = step.prop_map(|(later_us, back_us, kind, levels, key, pace, act)| Step {
        later_us,
        back_us,
        kind,
        levels,
        key,
        pace,
        act,
    });
    prop::collection::vec(step, 1..60)
}

/// Every second key is charged so that it may be given back.
fn levels(step: &Step, now: Now, cost: u64, warn: bool) -> Vec<Level> {
    let one = |index: u64| {
        let kind = (step.kind + index) % KINDS;
        let spec = spec(kind, step.pace, now.unix_us);
        let enforcement = if warn { Enforcement::Warn } else { Enforcement::Reject };
        let cost = Amount::from_micros(cost).unwrap();
        let refundable = step.key.is_multiple_of(2);
        Level { cost, refundable, enforcement, ..level(kind, u128::from(step.key), spec) }
    };
    (0..step.levels).map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn the_store_answers_as_a_plain_map_of_ledgers(
        first in 1..900_u64, steps in steps(5),
    ) {
        let (store, mut naive) = (Memory::new(), Naive::default());
        let (mut now_us, mut charges) = (START_US, Vec::new());
        // Keys that are only there, so that segments have been split.
        for key in 0..first {
            let filler = plan(Mode::Charge, at(now_us), [level(2, u128::from(key) + 100, total(9))]);
            prop_assert_eq!(store.answer(&filler), naive.answer(&filler));
        }
        for (holder, step) in (0..).zip(&steps) {
            now_us += step.later_us;
            // A plan that was made a while ago.
            let now = at(now_us - step.back_us);
            match step.act {
                Act::Spend { cost, peek, warn } => {
                    let mode = if peek { Mode::Peek } else { Mode::Charge };
                    let plan = Plan { holder, ..plan(mode, now, levels(step, now, cost, warn)) };
                    let answer = store.answer(&plan);
                    prop_assert_eq!(&answer, &naive.answer(&plan));
                    let charged = plan.levels.iter().zip(&answer.replies);
                    charges.extend(charged.filter(|(_, reply)| reply.charged).map(|(level, reply)| {
                        (*level, reply.charged_at_us, holder)
                    }));
                }
                Act::Correct(which, change) if !charges.is_empty() => {
                    let (level, charged_at_us, holder) = charges[which % charges.len()];
                    if !level.refundable && matches!(change, Change::Refund(_) | Change::Surcharge(_)) {
                        continue;
                    }
                    let amendment = Amendment { level, name: None, charged_at_us, holder, change };
                    let hit = store.amend_now(now, std::slice::from_ref(&amendment)).unwrap()[0];
                    prop_assert_eq!(hit, naive.amend(&amendment, now), "{:?}", amendment);
                }
                Act::Correct(..) => {}
            }
        }
    }

    #[test]
    fn what_is_given_back_of_a_slot_leaves_no_more_than_if_it_had_never_been_charged(
        costs in prop::collection::vec((1..3_000_000_u64, 0..900_u64), 1..12),
        which in 0..12_usize, amount in 0..3_000_000_u64,
    ) {
        let (store, level) = (Memory::new(), level(0, 1, bucket(3, 700)));
        let (mut now_us, mut charges) = (START_US, Vec::new());
        for (cost, later_us) in costs {
            now_us += later_us;
            let cost = Amount::from_micros(cost).unwrap();
            let reply = charge(&store, at(now_us), [Level { cost, ..level }])[0];
            if reply.charged {
                charges.push((cost, reply.charged_at_us));
            }
        }
        prop_assume!(!charges.is_empty());
        let which = which % charges.len();
        let (cost, charged_at_us) = charges[which];
        let back = Amount::from_micros(amount).unwrap().min(cost);
        let change = Change::Refund(back);
        let amendment = Amendment { level, name: None, charged_at_us, holder: 7, change };
        store.amend_now(at(now_us), &[amendment]).unwrap();
        charges[which].0 = cost.saturating_sub(back);
        let mut without = Ledger::new(&level.spec).unwrap();
        for (cost, charged_at_us) in &charges {
            without.charge(&level.spec, *charged_at_us, 0, *cost);
        }
        let left = store.answer(&plan(Mode::Peek, at(now_us), [level])).replies[0].reading.available;
        let most = without.reading(&level.spec, now_us).available;
        prop_assert!(left <= most, "{left:?} of {most:?}");
        if charged_at_us == charges.last().unwrap().1 {
            prop_assert_eq!(left, most, "the last charge is known");
        }
    }

    #[test]
    fn where_a_small_limit_is_full_the_key_goes_that_means_least(
        share in 1..20_usize, kind in 0..5_usize, refundable in any::<bool>(),
        hits in prop::collection::vec((0..60_u64, 1..90_u64, 1..200_u64), 1..200),
    ) {
        let (limit, window_us) = (units(100), 9_000);
        let spec = [
            bucket(100, 1_000_003),
            total(100),
            Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
            Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
            quota(limit, 0, QUARTER_US, START_US),
        ][kind];
        let (store, mut naive) = (Memory::with_max_keys(share), Naive::default());
        let mut now_us = START_US;
        for (key, cost, later_us) in hits {
            now_us += later_us;
            let level = level(1, u128::from(key), spec);
            let level = Level { cost: units(cost), refundable, ..level };
            let plan = plan(Mode::Charge, at(now_us), [level]);
            let answer = store.answer(&plan);
            if answer.replies[0].charged && naive.lacks_room(&level, share) {
                let (gone, least) = naive.keep(1, &store.table(1).unwrap().all_keys(), now_us);
                prop_assert_eq!(gone, [least]);
            }
            prop_assert_eq!(answer, naive.answer(&plan));
            let mut ends_us: Vec<u64> = naive.ends_us(1);
            let mut ours_us = store.table(1).unwrap().all_expires_us();
            ends_us.sort_unstable();
            ours_us.sort_unstable();
            prop_assert_eq!(ours_us, ends_us);
        }
    }
}
