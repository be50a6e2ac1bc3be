use std::collections::BTreeMap;

use super::*;
use crate::algorithm::{Spec, concurrency, token_bucket, total};
use crate::plan::{Level, Mode, Plan};
use crate::store::{Amendment, Change, ImmediateStore as _};
use crate::units::Amount;

const NOW: Now = Now { steady_us: 1_000_000, unix_us: 9_000_000 };
const TOTAL: u64 = 1;
const BUCKET: u64 = 2;
const PLACES: u64 = 3;
const FAMILIES: [u64; 3] = [TOTAL, BUCKET, PLACES];

fn units(count: u64) -> Amount {
    Amount::from_units(count).unwrap()
}

fn later(us: u64) -> Now {
    Now { steady_us: NOW.steady_us + us, unix_us: NOW.unix_us + us }
}

/// A total of a thousand, a bucket that is full after ten milliseconds, or ten places.
fn level(family: u64, key: u128) -> Level {
    let spec = match family {
        TOTAL => Spec::Total(total::Spec { limit: units(1_000) }),
        PLACES => Spec::Concurrency(concurrency::Spec { places: units(10), lease_us: 1_000 }),
        _ => Spec::TokenBucket(token_bucket::Spec {
            count: units(10),
            period_us: 10_000,
            burst: units(10),
        }),
    };
    Level { cost: Amount::ONE, ..Level::of_key(family, Key::counted(key), spec) }
}

fn store() -> Memory {
    let store = Memory::new();
    store.announce_now(&FAMILIES);
    store
}

fn tracked() -> Memory {
    let store = store();
    store.track_changes();
    store
}

fn charge_at(store: &Memory, level: Level, now: Now) -> bool {
    let mut plan = Plan::new(Mode::Charge);
    (plan.now, plan.holder) = (now, 7);
    plan.levels.push(level);
    store.answer(&plan).replies[0].charged
}

fn charge(store: &Memory, family: u64, key: u128) {
    assert!(charge_at(store, level(family, key), NOW));
}

fn amend(store: &Memory, level: Level, change: Change) -> bool {
    let charged_at_us = level.time_us(NOW);
    let amendment = Amendment { level, name: None, charged_at_us, holder: 7, change };
    store.amend_now(NOW, &[amendment]).unwrap()[0]
}

/// What has changed: how much each key owes by what was saved, or `None` where it was removed.
/// A key that comes twice fails, unless it went and came again.
fn drained_at(store: &Memory, now: Now) -> BTreeMap<(u64, u128), Option<u64>> {
    let mut drained = BTreeMap::new();
    for change in store.changes(now) {
        let (place, owed) = match change {
            SavedChange::Removed { family, key } => ((family, key.number().into()), None),
            SavedChange::Set(saved) => {
                let place = (saved.family, saved.key.number().into());
                let level = level(saved.family, saved.key.number().into());
                let reading = saved.ledger.reading(&level.spec, level.time_us(now));
                let owed = level.spec.capacity().saturating_sub(reading.available);
                (place, Some(owed.whole()))
            }
        };
        let before = drained.insert(place, owed);
        let came_again = before == Some(None) && owed.is_some();
        assert!(before.is_none() || came_again, "{place:?} came twice");
    }
    drained
}

fn drained(store: &Memory) -> BTreeMap<(u64, u128), Option<u64>> {
    drained_at(store, NOW)
}

#[test]
fn a_store_that_nobody_tracks_has_no_changes() {
    let store = store();
    charge(&store, TOTAL, 1);
    assert_eq!(store.changes(NOW).count(), 0);
    store.track_changes();
    assert_eq!(store.changes(NOW).count(), 0, "what was before is in the export");
    charge(&store, TOTAL, 1);
    assert_eq!(drained(&store), BTreeMap::from([((TOTAL, 1), Some(2))]));
}

#[test]
fn a_key_comes_once_however_often_it_was_charged_and_again_when_it_is() {
    let store = tracked();
    for _ in 0..3 {
        charge(&store, TOTAL, 1);
    }
    charge(&store, BUCKET, 2);
    let expected = BTreeMap::from([((TOTAL, 1), Some(3)), ((BUCKET, 2), Some(1))]);
    assert_eq!(drained(&store), expected);
    assert_eq!(drained(&store), BTreeMap::new());
    charge(&store, TOTAL, 1);
    assert_eq!(drained(&store), BTreeMap::from([((TOTAL, 1), Some(4))]));
    store.track_changes();
    charge(&store, TOTAL, 1);
    store.track_changes();
    assert_eq!(drained(&store), BTreeMap::from([((TOTAL, 1), Some(5))]), "tracked twice");
}

#[test]
fn a_look_that_charges_nothing_is_no_change() {
    let store = tracked();
    charge(&store, BUCKET, 1);
    drained(&store);
    charge_at(&store, Level { cost: Amount::ZERO, ..level(BUCKET, 1) }, NOW);
    let too_much = Level { cost: units(11), ..level(BUCKET, 1) };
    assert!(!charge_at(&store, too_much, NOW));
    assert!(!amend(&store, level(TOTAL, 9), Change::Reset), "it is not there");
    assert_eq!(drained(&store), BTreeMap::new());
}

#[test]
fn corrections_are_changes() {
    let store = tracked();
    for key in 1..=4 {
        charge(&store, TOTAL, key);
    }
    drained(&store);
    assert!(amend(&store, level(TOTAL, 1), Change::Surcharge(units(5))));
    assert!(amend(&store, level(TOTAL, 2), Change::Refund(Amount::ONE)));
    assert!(amend(&store, level(TOTAL, 3), Change::Reset));
    assert!(amend(&store, level(TOTAL, 5), Change::Debit(units(2))));
    let expected = [(1, Some(6)), (2, None), (3, None), (5, Some(2))];
    assert_eq!(drained(&store), expected.map(|(key, owed)| ((TOTAL, key), owed)).into());
}

#[test]
fn places_that_are_taken_and_left_are_changes() {
    let store = tracked();
    charge(&store, PLACES, 1);
    assert_eq!(drained(&store), BTreeMap::from([((PLACES, 1), Some(1))]));
    assert!(amend(&store, level(PLACES, 1), Change::Renew));
    assert_eq!(drained(&store), BTreeMap::from([((PLACES, 1), Some(1))]));
    assert!(amend(&store, level(PLACES, 1), Change::Release));
    assert_eq!(drained(&store), BTreeMap::from([((PLACES, 1), None)]));
}

#[test]
fn a_key_that_had_to_go_is_removed_and_one_that_lost_its_meaning_is_not_told() {
    let store = Memory::with_max_keys(2);
    store.announce_now(&[BUCKET]);
    store.track_changes();
    charge(&store, BUCKET, 1);
    charge(&store, BUCKET, 2);
    drained(&store);
    assert!(charge_at(&store, level(BUCKET, 3), later(10)));
    assert_eq!(store.evicted_keys(), 1);
    let changes = drained_at(&store, later(10));
    let removed: Vec<_> = changes.iter().filter(|(_, owed)| owed.is_none()).collect();
    assert_eq!((changes.len(), removed.len()), (2, 1), "{changes:?}");
    assert!(charge_at(&store, level(BUCKET, 4), later(60_000_000)));
    let changes = drained_at(&store, later(60_000_000));
    assert_eq!(changes, BTreeMap::from([((BUCKET, 4), Some(1))]));
}

#[test]
fn a_key_that_ends_sooner_than_was_told_does_not_come_back() {
    let store = Memory::with_max_keys(1);
    store.announce_now(&[BUCKET]);
    store.track_changes();
    let given_back = Level { cost: units(8), refundable: true, ..level(BUCKET, 1) };
    assert!(charge_at(&store, given_back, NOW));
    assert_eq!(drained(&store), BTreeMap::from([((BUCKET, 1), Some(8))]));
    assert!(amend(&store, given_back, Change::Refund(units(7))));
    // It is full again after a millisecond, and was to be after eight.
    assert!(charge_at(&store, level(BUCKET, 2), later(2_000)));
    assert_eq!(store.evicted_keys(), 0);
    let expected = BTreeMap::from([((BUCKET, 1), None), ((BUCKET, 2), Some(1))]);
    assert_eq!(drained_at(&store, later(2_000)), expected);
}

#[test]
fn of_a_flood_of_keys_that_go_as_many_are_told_of_as_are_noted() {
    let store = Memory::with_max_keys(4);
    store.announce_now(&[TOTAL]);
    store.track_changes();
    let many = REMOVALS_MIN as u128 + 100;
    (0..many).for_each(|key| charge(&store, TOTAL, key));
    assert!(!store.lost_track(), "nobody needs to begin anew");
    let drained = drained(&store);
    let removed = drained.values().filter(|owed| owed.is_none()).count();
    assert_eq!((drained.len() - removed, removed), (4, REMOVALS_MIN));
}

#[test]
fn a_key_that_is_reset_does_not_come_back_though_nobody_was_told_that_it_went() {
    let (store, replayed) = (Memory::with_max_keys(4), store());
    store.announce_now(&[TOTAL]);
    store.track_changes();
    charge(&store, TOTAL, 0);
    replayed.replay(NOW, store.changes(NOW), NOW);
    // Others mean more, so that it has to go; when it does, there is no room to note it.
    for key in 100..100 + REMOVALS_MIN as u128 {
        charge(&store, TOTAL, key);
        assert!(amend(&store, level(TOTAL, key), Change::Reset));
    }
    for key in 1..=4 {
        assert!(charge_at(&store, Level { cost: units(20), ..level(TOTAL, key) }, NOW));
    }
    assert!(store.table(TOTAL).unwrap().removals.is_incomplete());
    assert!(!amend(&store, level(TOTAL, 0), Change::Reset), "it is not there");
    assert!(!store.lost_track());
    replayed.replay(NOW, store.changes(NOW), NOW);
    let left =
        |store: &Memory| store.export(NOW).map(|saved| saved.key.number()).collect::<Vec<_>>();
    assert_eq!((left(&replayed).len(), left(&replayed).contains(&0)), (4, false));
    store.announce_now(&[BUCKET]);
    assert!(store.lost_track(), "whoever went with the limit may be unknown");
}

#[test]
fn a_key_that_went_and_came_again_is_told_of_both_times() {
    let store = tracked();
    charge(&store, TOTAL, 1);
    drained(&store);
    assert!(amend(&store, level(TOTAL, 1), Change::Reset));
    charge(&store, TOTAL, 1);
    let kinds: Vec<bool> =
        store.changes(NOW).map(|change| matches!(change, SavedChange::Set(_))).collect();
    assert_eq!(kinds, [false, true]);
    assert_eq!(drained(&store), BTreeMap::new());
}

#[test]
fn more_keys_that_were_reset_than_are_noted_are_told_of_once() {
    let store = Memory::with_max_keys(4);
    store.announce_now(&[TOTAL]);
    store.track_changes();
    let reset = |key| {
        charge(&store, TOTAL, key);
        assert!(amend(&store, level(TOTAL, key), Change::Reset));
    };
    let many = 2 * REMOVALS_MIN as u128;
    // A flood leaves room for those that are reset.
    (0..many).for_each(|key| charge(&store, TOTAL, key));
    (0..REMOVALS_MIN as u128).for_each(reset);
    assert!(!store.lost_track(), "so many are noted");
    reset(many);
    assert!(store.lost_track() && !store.lost_track());
    drained(&store);
    reset(many + 1);
    assert_eq!(drained(&store), BTreeMap::from([((TOTAL, many + 1), None)]));
    assert!(!store.lost_track());
}

#[test]
fn keys_go_with_their_limit_and_do_not_come_back_with_it() {
    let store = tracked();
    charge(&store, TOTAL, 1);
    charge(&store, BUCKET, 1);
    drained(&store);
    charge(&store, TOTAL, 2);
    store.announce_now(&[BUCKET]);
    let gone = BTreeMap::from([((TOTAL, 1), None)]);
    let mut changes = drained(&store);
    assert!(matches!(changes.remove(&(TOTAL, 2)), None | Some(None)), "never written, or gone");
    assert_eq!(changes, gone);
    store.announce_now(&FAMILIES);
    charge(&store, TOTAL, 3);
    assert_eq!(drained(&store), BTreeMap::from([((TOTAL, 3), Some(1))]));
}

#[test]
fn every_changed_key_comes_however_many_there_are() {
    let store = tracked();
    let many = 3 * 256 + 5;
    for key in 0..many {
        charge(&store, TOTAL, key);
    }
    assert_eq!(drained(&store).len(), usize::try_from(many).unwrap());
}

#[test]
fn what_changes_while_changes_are_read_comes_now_or_the_next_time() {
    let store = tracked();
    for key in 0..1_000 {
        charge(&store, TOTAL, key);
    }
    let mut seen = BTreeMap::new();
    let note = |seen: &mut BTreeMap<u128, u64>, change: SavedChange| {
        let SavedChange::Set(saved) = change else { panic!("nothing was removed") };
        let level = level(TOTAL, saved.key.number().into());
        let available = saved.ledger.reading(&level.spec, NOW.steady_us).available;
        seen.insert(u128::from(saved.key.number()), 1_000 - available.whole());
    };
    for (index, change) in store.changes(NOW).enumerate() {
        note(&mut seen, change);
        if index % 10 == 0 {
            charge(&store, TOTAL, index as u128);
        }
    }
    store.changes(NOW).for_each(|change| note(&mut seen, change));
    for key in 0..1_000 {
        assert_eq!(seen[&key], if key % 10 == 0 { 2 } else { 1 }, "{key}");
    }
    assert_eq!(store.changes(NOW).count(), 0);
}

/// What a store holds, and nothing else.
fn contents(store: &Memory, now: Now) -> Vec<String> {
    let mut contents: Vec<String> =
        store.export(now).map(|saved| serde_json::to_string(&saved).unwrap()).collect();
    contents.sort();
    contents
}

#[test]
fn changes_that_are_replayed_make_the_same_store() {
    let (store, copy) = (tracked(), self::store());
    let replay = |now: Now| {
        let written: Vec<String> =
            store.changes(now).map(|change| serde_json::to_string(&change).unwrap()).collect();
        let changes = written.iter().map(|text| serde_json::from_str(text).unwrap());
        copy.replay(now, changes, now);
        assert_eq!(contents(&copy, now), contents(&store, now));
    };
    for key in 0..10 {
        charge(&store, TOTAL, key);
        charge(&store, BUCKET, key);
        charge(&store, PLACES, key);
    }
    replay(NOW);
    assert!(amend(&store, level(TOTAL, 1), Change::Reset));
    assert!(amend(&store, level(TOTAL, 2), Change::Refund(Amount::ONE)));
    assert!(amend(&store, level(PLACES, 3), Change::Release));
    charge(&store, TOTAL, 3);
    replay(NOW);
    assert!(charge_at(&store, level(BUCKET, 3), later(500)));
    replay(later(500));
    assert!(!contents(&copy, later(500)).is_empty());
}

#[test]
fn what_is_replayed_is_as_old_as_it_was_and_the_limits_that_are_gone_stay_so() {
    let (store, copy) = (tracked(), Memory::new());
    copy.announce_now(&[BUCKET]);
    charge(&store, TOTAL, 1);
    for key in [1, 2] {
        charge(&store, BUCKET, key);
    }
    let after = Now { steady_us: 77_000, unix_us: NOW.unix_us + 600 };
    let imported = copy.replay(NOW, store.changes(NOW), after);
    assert_eq!(imported, ImportSummary { restored: 2, meaningless: 0, strangers: 1 });
    let after = Now { steady_us: 77_000, unix_us: NOW.unix_us + 1_000 };
    let copy = Memory::new();
    copy.announce_now(&[BUCKET]);
    charge(&store, BUCKET, 1);
    let imported = copy.replay(NOW, store.changes(NOW), after);
    assert_eq!(imported, ImportSummary { restored: 1, ..ImportSummary::default() });
    let reading =
        |now: Now| copy.key_usage(BUCKET, Key::counted(1), now).map(|one| one.paces[0].reading);
    assert_eq!(reading(after).unwrap().available, units(9), "one of two has come back");
}

#[test]
fn many_keys_come_back_whichever_way_they_were_saved() {
    let (store, exported, replayed) = (tracked(), self::store(), self::store());
    let many = 5_000;
    for key in 1..=many {
        charge(&store, TOTAL, u128::wrapping_mul(key, 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835));
    }
    let kept = contents(&store, NOW);
    assert_eq!(kept.len(), usize::try_from(many).unwrap());
    exported.replay(NOW, store.export(NOW).map(SavedChange::Set), NOW);
    assert_eq!(exported.keys(), kept.len());
    assert!(contents(&exported, NOW) == kept);
    replayed.replay(NOW, store.changes(NOW), NOW);
    assert_eq!(replayed.keys(), kept.len());
    assert!(contents(&replayed, NOW) == kept);
    replayed.replay(NOW, store.export(NOW).map(SavedChange::Set), NOW);
    assert!(contents(&replayed, NOW) == kept, "each of them again");
}
