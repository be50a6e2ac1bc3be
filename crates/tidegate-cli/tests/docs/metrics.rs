//! The metrics in docs/operating.md against those of a running daemon.

use std::collections::BTreeSet;
use std::fs;

use crate::markdown::{Step, root};
use crate::session::Session;

#[test]
fn every_metric_is_documented_and_every_documented_metric_is_there() {
    let mut session = Session::start();
    session.follow(&Step::Run {
        place: "this test".to_owned(),
        // No server is there; the daemon has the metrics of a shared store all the same.
        command: "tidegate serve --store redis://127.0.0.1:6379 --state-dir state".to_owned(),
        shown: vec!["listening admin http://127.0.0.1:7071".to_owned()],
    });
    let page = session.output("curl http://127.0.0.1:7071/metrics");
    session.end();
    let families = page.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let told: BTreeSet<&str> = families.filter_map(|line| line.split(' ').next()).collect();
    let told: BTreeSet<&str> =
        told.into_iter().filter(|name| name.starts_with("tidegate_")).collect();
    assert!(told.len() > 8, "{page}");

    let text = fs::read_to_string(root().join("docs/operating.md")).unwrap();
    let rows = text.lines().filter(|line| line.starts_with("| `tidegate_"));
    let names = rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`'));
    let documented: BTreeSet<&str> = names.filter(|name| name.starts_with("tidegate_")).collect();
    assert_eq!(documented, told);
}
