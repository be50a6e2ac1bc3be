use super::*;
use crate::algorithm::{fixed_window, sliding_window, token_bucket, total};
use crate::key::Key;

const SECOND_US: u64 = 1_000_000;
const START_US: u64 = 1_767_603_600 * SECOND_US;

fn units(units: u64) -> Amount {
    Amount::from_units(units).unwrap()
}

fn at(seconds: u64) -> Now {
    let us = START_US + seconds * SECOND_US;
    Now { steady_us: us, unix_us: us }
}

/// Twelve at once, and one a second.
fn bucket() -> Spec {
    let count = Amount::ONE;
    Spec::TokenBucket(token_bucket::Spec { count, period_us: SECOND_US, burst: units(12) })
}

fn window(limit: u64) -> Spec {
    let window_us = 60 * SECOND_US;
    Spec::SlidingWindow(sliding_window::Spec { limit: units(limit), window_us })
}

fn plan(spec: Spec, now: Now) -> Plan {
    let mut plan = Plan::new(Mode::Charge);
    plan.now = now;
    plan.names = vec!["api:calls:u1".into()];
    plan.levels.push(Level {
        limit: 0,
        family: 1,
        key: Key(1),
        spec,
        cost: Amount::ONE,
        refundable: false,
        reserved: false,
        leased: false,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    });
    plan
}

/// The store said that this much is left.
fn heard(fallback: &Fallback, spec: Spec, available: u64, now: Now) {
    let reading = Reading { available: units(available), reset_us: None };
    let reply =
        Reply { verdict: Verdict::Allowed, charged: true, charged_at_us: now.steady_us, reading };
    let answer = Answer { now, replies: std::iter::once(reply).collect() };
    fallback.note(&plan(spec, now), &answer, now);
}

/// How many of many requests are admitted at once.
fn admits(fallback: &Fallback, spec: Spec, nodes: u32, now: Now) -> usize {
    let admitted = |_: &i32| fallback.decide(&mut plan(spec, now), nodes).replies[0].charged;
    (0..20).filter(admitted).count()
}

#[test]
fn a_key_that_nothing_is_known_of_starts_with_its_whole_share() {
    let fallback = Fallback::new(100);
    assert_eq!(admits(&fallback, bucket(), 3, at(0)), 4);
}

#[test]
fn a_key_starts_with_its_share_of_what_was_left_and_of_what_came_back_since() {
    let fallback = Fallback::new(100);
    heard(&fallback, bucket(), 6, at(0));
    assert_eq!(admits(&fallback, bucket(), 3, at(0)), 2);
    let fallback = Fallback::new(100);
    heard(&fallback, bucket(), 0, at(0));
    assert_eq!(admits(&fallback, bucket(), 1, at(5)), 5);
}

#[test]
fn a_window_starts_with_what_was_used_of_it_until_that_is_over() {
    let fallback = Fallback::new(100);
    heard(&fallback, window(10), 4, at(0));
    assert_eq!(admits(&fallback, window(10), 1, at(30)), 4);
    assert_eq!(admits(&fallback, window(10), 1, at(60)), 6, "those of the store are over");
}

#[test]
fn a_small_share_is_not_lost_to_a_part_of_a_unit() {
    let fallback = Fallback::new(100);
    heard(&fallback, window(3), 2, at(0));
    assert_eq!(admits(&fallback, window(3), 3, at(1)), 1);
    let fallback = Fallback::new(100);
    heard(&fallback, window(3), 0, at(0));
    assert_eq!(admits(&fallback, window(3), 3, at(1)), 0);
}

#[test]
fn a_later_word_of_the_store_counts_where_it_says_less() {
    let fallback = Fallback::new(100);
    assert!(fallback.decide(&mut plan(bucket(), at(0)), 1).replies[0].charged);
    heard(&fallback, bucket(), 3, at(1));
    assert_eq!(admits(&fallback, bucket(), 1, at(1)), 3);
    heard(&fallback, bucket(), 12, at(2));
    assert_eq!(admits(&fallback, bucket(), 1, at(2)), 1, "what was spent here is spent");
}

fn owed(fallback: &Fallback) -> Vec<(Option<String>, Spec, Change)> {
    let told = |amendment: Amendment| {
        let name = amendment.name.map(|name| name.to_string());
        (name, amendment.level.spec, amendment.change)
    };
    fallback.debts.take().into_iter().map(told).collect()
}

#[test]
fn what_is_admitted_here_is_owed_to_the_store_as_it_knows_the_key() {
    let fallback = Fallback::new(100);
    assert_eq!(admits(&fallback, bucket(), 3, at(0)), 4);
    let name = Some("api:calls:u1".to_owned());
    assert_eq!(owed(&fallback), [(name, bucket(), Change::Debit(units(4)))]);
    assert_eq!((owed(&fallback).len(), fallback.debts.keys()), (0, 0));
}

#[test]
fn no_key_owes_more_than_one_limit() {
    let fallback = Fallback::new(100);
    for second in [0, 20, 40] {
        assert_eq!(admits(&fallback, bucket(), 1, at(second)), 12);
    }
    assert_eq!(owed(&fallback)[0].2, Change::Debit(units(12)));
}

#[test]
fn an_event_that_takes_the_place_of_an_older_one_leaves_what_is_owed() {
    let fallback = Fallback::new(100);
    assert_eq!(admits(&fallback, window(3), 1, at(0)), 3);
    for _ in 0..5 {
        for change in [Change::Debit(units(1)), Change::Refund(units(1))] {
            let level = plan(window(3), at(0)).levels[0];
            let charged_at_us = at(0).steady_us;
            let amendment = Amendment { level, name: None, charged_at_us, holder: 0, change };
            fallback.amend(at(0), &[amendment]);
        }
    }
    assert_eq!(owed(&fallback)[0].2, Change::Debit(units(3)));
}

#[test]
fn what_is_given_back_here_is_owed_no_more() {
    let fallback = Fallback::new(100);
    assert_eq!(admits(&fallback, bucket(), 3, at(0)), 4);
    let correct = |change| {
        let mut charged = plan(bucket(), at(0));
        charged.levels[0].spec = bucket().share_of(3);
        let (charged_at_us, holder) = (at(0).steady_us, 0);
        let level = charged.levels[0];
        Amendment { level, name: None, charged_at_us, holder, change }
    };
    fallback.amend(at(0), &[correct(Change::Refund(units(1)))]);
    fallback.amend(at(0), &[correct(Change::Surcharge(units(2)))]);
    let debts = fallback.debts.take();
    assert_eq!(debts[0].change, Change::Debit(units(5)));
    fallback.debts.put_back(&debts, START_US);
    fallback.amend(at(0), &[correct(Change::Reset)]);
    assert_eq!(fallback.debts.keys(), 0);
}

#[test]
fn more_keys_than_there_is_room_for_are_counted_as_untold() {
    let fallback = Fallback::new(1_000_000);
    for key in 0..100_000_u128 {
        let mut plan = plan(bucket(), at(0));
        plan.levels[0].key = Key::counted(key);
        fallback.decide(&mut plan, 1);
    }
    let kept = fallback.debts.keys();
    assert_eq!(kept, 65_536);
    assert_eq!(fallback.debts.take_untold(), 100_000 - 65_536);
    assert_eq!(fallback.debts.take().len(), kept);
}

#[test]
fn only_what_is_counted_here_is_owed() {
    let fallback = Fallback::new(100);
    for on_store_failure in [OnStoreFailure::Allow, OnStoreFailure::Deny] {
        let mut plan = plan(bucket(), at(0));
        plan.levels[0].on_store_failure = on_store_failure;
        fallback.decide(&mut plan, 1);
    }
    assert_eq!(fallback.debts.keys(), 0);
}

#[test]
fn a_limit_that_lets_all_pass_tells_what_an_unused_one_tells() {
    let minute =
        Spec::FixedWindow(fixed_window::Spec { limit: units(5), window_us: 60 * SECOND_US });
    let total = Spec::Total(total::Spec { limit: units(5) });
    // An unused bucket is full now, a window ends when it ends, and a total never does.
    for (spec, reset_us) in
        [(bucket(), Some(0)), (window(5), Some(0)), (minute, Some(50 * SECOND_US)), (total, None)]
    {
        let mut plan = plan(spec, at(10));
        plan.levels[0].on_store_failure = OnStoreFailure::Allow;
        let reply = &Fallback::new(10).decide(&mut plan, 1).replies[0];
        assert_eq!(reply.reading, Reading { available: spec.capacity(), reset_us }, "{spec:?}");
        assert_eq!((reply.verdict, reply.charged), (Verdict::Allowed, false));
    }
}
