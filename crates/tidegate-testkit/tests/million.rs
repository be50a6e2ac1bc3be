//! The table of the plan for a million requests a second is the simulation's.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::path::Path;

use tidegate_testkit::deployment::figures::{CLIENT, CLIENTS, SECONDS, WARM_UP_SECONDS};
use tidegate_testkit::deployment::{compared, table};

#[test]
fn the_document_shows_what_the_simulation_prints() {
    let compared = compared();
    for (setup, counted) in &compared {
        let (rate, burst) = CLIENT;
        let allowed = u64::from(CLIENTS) * (burst + rate * (SECONDS - WARM_UP_SECONDS));
        assert!(counted.admitted <= counted.requests.min(allowed), "{setup:?}: {counted:?}");
        assert!(counted.on_node + counted.asks >= counted.requests, "{setup:?}: {counted:?}");
    }
    let levels: Vec<u64> = compared.iter().map(|(_, counted)| counted.levels).collect();
    assert!(levels.windows(2).all(|pair| pair[1] < pair[0]), "each step asks less: {levels:?}");
    let admitted: Vec<u64> = compared.iter().map(|(_, counted)| counted.admitted).collect();
    let (least, most) = (admitted.iter().min().unwrap(), admitted.iter().max().unwrap());
    assert!(most - least < most / 100, "all ways admit the same, but for chance: {admitted:?}");

    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let document = folder.join("a-million-requests-a-second.md");
    let document = std::fs::read_to_string(document).unwrap();
    let table = table(&compared);
    assert!(document.contains(&table), "the document should have\n{table}");
}
