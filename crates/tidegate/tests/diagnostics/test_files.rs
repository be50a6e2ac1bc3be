//! Test files.

use super::*;

#[test]
fn what_every_test_file_needs() {
    assert_snapshot!(test_file("{}"));
    assert_snapshot!(test_file("[]"));
    assert_snapshot!(test_file("{ polcy: p.yaml, env: [], test: [] }"));
    assert_snapshot!(test_file(
        "
policy:
profile: []
env: { A: [a], B: , C: c }
start: yesterday
tests: {}
policies: p.yaml
"
    ));
    assert_snapshot!(test_file("{ policy: p.yaml, start: 1969-01-01T00:00:00Z, tests: [] }"));
}

#[test]
fn tests_and_steps() {
    assert_snapshot!(test_file(
        "
policy: p.yaml
tests:
  - five
  - { name: '', steps: [{}] }
  - { steps: [{}] }
  - { name: none }
  - { name: empty, steps: [] }
  - { name: unknown, step: [] }
  - { name: twice, steps: [{ at: 0s }] }
  - { name: twice, steps: [{ at: 0s }] }
  - name: steps
    steps:
      - next
      - { at: soon, times: 0, spread: 0s }
      - { at: 10s, times: 3, spread: 5s }
      - { at: 15s }
      - { at: , times: many, spread: 5 }
      - { request: {}, store: down }
      - { store: sideways }
      - { store: down, status: 200, as: a, expect: allowed }
      - { status: 99, as: }
      - { settle: {} }
      - { settle: { cost: -1 } }
      - { settle: { cost: 1, status: 200 } }
      - { settle: { status: lost, lease: [] } }
      - { settle: 5 }
      - { release: a }
      - { release: { leases: a } }
      - { waits: 5s }
      - { acquire: {} }
      - { acquire: 5s }
      - { acquire: { max_wait: soon } }
      - { acquire: { max_wait: 5s }, release: true }
"
    ));
}

#[test]
fn requests_and_expectations() {
    assert_snapshot!(test_file(
        "
policy: p.yaml
tests:
  - name: requests
    request: { methd: GET }
    steps:
      - request: { method: , path: [], ip: 192.0.2, peer: '{n}', internal: yes, cost: -1 }
      - request: { attributes: [a], headers: { A: { b: c }, B: [[]] }, reserve: 1 }
      - request: 5
  - name: expectations
    steps:
      - { expect: alowed }
      - { expect: [] }
      - { expect: { outcome: denied, limit: [], status: 42, retry_after: 5, remaining: some } }
      - { expect: { reset: later, headers: [], operation: , tier: {}, degraded: 1, outcom: x } }
      - { expect: { retry_after: 0.0000001s, remaining: -1, warnings: [{}] } }
      - { expect: { headers: { A: [a], B: , C: c } } }
      - { expect: { waited: long } }
"
    ));
}

#[test]
fn reports_loads_and_bans() {
    assert_snapshot!(test_file(
        "
policy: p.yaml
tests:
  - name: steps
    request: { user: u1 }
    steps:
      - { report: login }
      - { report: { user: u2 } }
      - { report: { event: , usr: u2 } }
      - { report: { event: login, value: -1 } }
      - { report: { event: login }, request: {} }
      - { report: { event: login }, status: 401 }
      - { report: { event: login }, expect: { delay: 2, limit: a, outcome: bannd } }
      - { load: 80%, expect: allowed }
      - { load: 1.1 }
      - { ban: u1 }
      - { ban: { kee: { user: u1 } } }
      - { ban: { key: {}, for: 1h } }
      - { ban: { key: { user: [] } } }
      - { ban: { key: { user: u1 }, for: long, reason: } }
      - { ban: { key: { user: u1 } } }
      - { ban: { key: { ip: here }, for: 1h } }
      - { ban: { key: { user: u1 }, for: 1h, permanent: true } }
      - { expect: { delay: , factor: twice, flags: [{}], notified: {} } }
"
    ));
}
