//! The store against a plain map, under threads, and under a flood.

mod compact;
mod flood;
mod lending;
mod model;
mod naive;
mod tables;
mod threads;

use super::*;
use crate::algorithm::{Spec, token_bucket, total};
use crate::plan::{Enforcement, PerLevel};
use crate::store::Reply;
use crate::units::Amount;

fn units(count: u64) -> Amount {
    Amount::from_units(count).unwrap()
}

fn at(us: u64) -> Now {
    Now { steady_us: us, unix_us: us }
}

fn total(limit: u64) -> Spec {
    Spec::Total(total::Spec { limit: units(limit) })
}

fn bucket(count: u64, period_us: u64) -> Spec {
    let (count, burst) = (units(count), units(count));
    Spec::TokenBucket(token_bucket::Spec { count, period_us, burst })
}

/// A level that refuses, and costs one.
fn level(family: u64, key: u128, spec: Spec) -> Level {
    let level = Level::of_key(family, Key::counted(key), spec);
    Level { cost: Amount::ONE, enforcement: Enforcement::Reject, ..level }
}

fn plan(mode: Mode, now: Now, levels: impl IntoIterator<Item = Level>) -> Plan {
    let mut plan = Plan::new(mode);
    (plan.now, plan.holder) = (now, 7);
    plan.levels.extend(levels);
    plan
}

fn charge(store: &Memory, now: Now, levels: impl IntoIterator<Item = Level>) -> PerLevel<Reply> {
    store.answer(&plan(Mode::Charge, now, levels)).replies
}
