//! Conditions of `when:` and `exempt:`.

use super::*;

#[test]
fn operations_and_attributes() {
    assert_snapshot!(lines(
        "
identity: { attributes: { level: given } }
operations: { login: POST /login, room: 'GET /rooms/{room}' }
limits:
  a: { when: logn, by: ip, total: 5 }
  b: { when: [login, banana, ~], by: ip, total: 5 }
  c: { when: [], by: ip, total: 5 }
  d: { when: { operations: login }, by: ip, total: 5 }
  e: { when: { operation: logn, attributes: { levl: 1, level: [] } }, by: ip, total: 5 }
  f: { when: login, by: room, total: 5 }
  g: { when: { operation: room, attributes: { room: 1 } }, by: [room, rom], total: 5 }
"
    ));
}

#[test]
fn everything_else() {
    assert_snapshot!(lines(
        "
exempt:
  - { tier: [], method: [get, 'GET|POST', ''], path: [health, /a?b], ip: localhost }
  - { country: [], authenticated: maybe, internal: 1, attributes: [a], not: [a] }
  - { not: { methods: GET } }
  - login
"
    ));
}
