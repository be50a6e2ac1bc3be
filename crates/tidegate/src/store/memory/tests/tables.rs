//! Decisions by tables that were looked up before.

use crate::algorithm::{Spec, total};
use crate::key::Key;
use crate::plan::{Level, Mode, Plan};
use crate::store::{Answer, ImmediateStore as _, Memory, Tables};
use crate::units::Amount;

/// A request that the first limit of a policy meets.
fn plan(family: u64, key: u128) -> Plan {
    let mut plan = Plan::new(Mode::Charge);
    let spec = Spec::Total(total::Spec { limit: Amount::ONE });
    plan.levels.push(Level { cost: Amount::ONE, ..Level::of_key(family, Key::counted(key), spec) });
    plan
}

fn is_allowed(store: &Memory, tables: &Tables) -> bool {
    let mut answer = Answer::empty();
    store.decide_in(tables, &plan(1, 7), &mut answer).unwrap();
    answer.replies[0].is_allowed()
}

#[test]
fn keys_are_where_the_store_looks_for_them() {
    let store = Memory::new();
    store.announce_now(&[1]);
    let tables = store.tables_now(&[1]);
    assert!(is_allowed(&store, &tables));
    assert!(!store.decide_now(&plan(1, 7)).unwrap().replies[0].is_allowed());
    assert!(!is_allowed(&store, &tables));
}

#[test]
fn a_table_that_the_store_has_done_away_with_is_asked_no_more() {
    let store = Memory::new();
    store.announce_now(&[1]);
    let tables = store.tables_now(&[1]);
    assert!(is_allowed(&store, &tables));
    store.announce_now(&[2]);
    store.announce_now(&[1]);
    assert!(is_allowed(&store, &tables), "forgotten");
    assert_eq!(store.keys(), 1);
}

#[test]
fn limits_that_nobody_has_announced_have_no_tables() {
    let store = Memory::new();
    store.announce_now(&[1]);
    let tables = store.tables_now(&[1, 2]);
    assert!(is_allowed(&store, &tables));
    assert_eq!(store.keys(), 1);
}

#[test]
fn keys_that_were_expected_are_found_as_others_are() {
    let store = Memory::new().with_expected_keys(5_000);
    store.announce_now(&[1]);
    for _ in 0..2 {
        let allowed =
            |key: &u128| store.decide_now(&plan(1, *key)).unwrap().replies[0].is_allowed();
        let fresh = (0..10_000).filter(allowed).count();
        assert!(fresh == 10_000 || fresh == 0, "{fresh} were new");
    }
    assert_eq!(store.keys(), 10_000);
}
