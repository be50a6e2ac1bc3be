//! Policy tests, as `tidegate test` runs them: a million requests a second on one core.

use tidegate::engine::simulate::TestFile;

use crate::decision::POLICY;
use crate::rounds::now;
use crate::table::Table;

const ONE_BUCKET: &str =
    "{ tidegate: 1, name: one, limits: { per-user: { by: user, token_bucket: 1m/s } } }";
const REQUESTS: usize = 100_000;
const RUNS: usize = 25;
const NS_MOST: f64 = 1_000.0;

/// Measures simulated requests.
pub fn measure(table: &mut Table) {
    for (limits, policy) in [("one limit", ONE_BUCKET), ("three of 12 limits", POLICY)] {
        for (users, user) in [("one user", "u1"), ("as many users", "u{n}")] {
            let what = format!("simulated request, {limits}, {users}");
            table.add_against(&what, "ns", nanoseconds(policy, user), None, NS_MOST);
        }
    }
}

/// The nanoseconds of the median run.
fn nanoseconds(policy: &str, user: &str) -> f64 {
    let text = format!(
        "
policy: p.yaml
tests:
  - name: bookings
    request: {{ method: POST, path: /rooms/r9/bookings, user: '{user}' }}
    steps:
      - {{ times: {REQUESTS}, spread: 1ms, expect: allowed }}
"
    );
    let file = TestFile::parse("t.yaml", &text).unwrap();
    let mut runs = [0.0; RUNS];
    for run in &mut runs {
        let started = now();
        let report = file.run("p.yaml", policy, None).unwrap();
        *run = started.elapsed().as_secs_f64() * 1e9 / REQUESTS as f64;
        assert!(report.tests[0].failure.is_none());
    }
    runs.sort_by(f64::total_cmp);
    runs[RUNS / 2]
}
