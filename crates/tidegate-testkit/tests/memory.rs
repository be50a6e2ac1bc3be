//! The memory store shows every behaviour, and a store that is broken in some way does not.

mod faulty;

use faulty::FaultyStore;
use tidegate::engine::store::Memory;
use tidegate_testkit::behaviours::{BEHAVIOURS, OnPlanTime, every_behaviour};
use tidegate_testkit::block_on;

#[test]
fn the_memory_store_shows_every_behaviour() {
    let run = every_behaviour(async || OnPlanTime::new(Memory::new()));
    block_on(run).unwrap_or_else(|failures| panic!("{failures}"));
}

#[test]
fn a_small_memory_store_shows_every_behaviour_too() {
    let run = every_behaviour(async || OnPlanTime::new(Memory::with_max_keys(64 * 16)));
    block_on(run).unwrap_or_else(|failures| panic!("{failures}"));
}

/// The list is worth nothing if a broken store passes it.
#[test]
fn every_fault_is_found() {
    for (fault, behaviour) in faulty::ALL {
        assert!(BEHAVIOURS.contains(&behaviour), "{behaviour} is not on the list");
        let run = every_behaviour(async || OnPlanTime::new(FaultyStore::new(fault)));
        let failures = block_on(run).expect_err(&format!("{fault:?} was not noticed"));
        let names: Vec<&str> = failures.0.iter().map(|failure| failure.behaviour).collect();
        assert!(names.contains(&behaviour), "{fault:?}: {behaviour} holds, but not {names:?}");
    }
}
