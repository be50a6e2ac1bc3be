//! The plan for a million requests a second shows what its simulation says.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::path::Path;

use tidegate_testkit::deployment::figures::{CLIENT, CLIENTS, SECONDS, WARM_UP_SECONDS};
use tidegate_testkit::deployment::{SETUPS, Traffic, World, table};

#[test]
fn the_document_shows_what_the_simulation_prints() {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/a-million-requests-a-second.md");
    let document = std::fs::read_to_string(path).unwrap();
    let table = table();
    assert!(document.contains(&table), "the document should have\n{table}");
}

#[test]
fn every_way_admits_no_more_than_the_limits_of_all_clients() {
    let traffic = Traffic::new(1);
    for setup in SETUPS {
        let counted = World::new(setup).run(&traffic);
        let seconds = SECONDS - WARM_UP_SECONDS;
        assert!(counted.admitted <= counted.requests);
        let (rate, burst) = CLIENT;
        assert!(counted.admitted <= u64::from(CLIENTS) * (burst + rate * seconds), "{setup:?}");
        assert!(counted.on_node + counted.asks >= counted.requests, "{setup:?}: {counted:?}");
    }
}

#[test]
fn each_further_step_asks_the_store_less() {
    let traffic = Traffic::new(2);
    let levels: Vec<u64> =
        SETUPS.iter().map(|setup| World::new(*setup).run(&traffic).levels).collect();
    assert!(levels.windows(2).all(|pair| pair[1] < pair[0]), "{levels:?}");
}
