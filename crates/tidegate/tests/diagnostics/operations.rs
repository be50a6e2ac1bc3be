//! The `operations:` section.

use super::*;

#[test]
fn patterns() {
    assert_snapshot!(lines(
        "
operations:
  two words: GET /
  default: GET /
  nothing:
  none: []
  lower: get /
  twice: GET|GET /
  relative: GET a
  empty: GET /a//b
  star: GET /a*
  stars: GET /**/**
  braces: 'GET /a{b}'
  capture: 'GET /{a b}'
  captures: 'GET /{a}/{a}'
  query: GET /a?b=c
  parameter: GET /a;b
  space: GET /a b
  dots: GET /a/../b
  slash: GET /a%2Fb
  percent: GET /a%zz
  nul: GET /a%00
  bytes: GET /%ff
  reserved: 'GET /{user}'
  list: [GET /ok, {}, ~]
"
    ));
}

#[test]
fn maps() {
    assert_snapshot!(lines(
        "
operations:
  unknown: { matches: GET / }
  header: { header: { X-A: a } }
  headers: { match: GET /, header: { 'X A': a, X-B: , X-C: [c] } }
  list: { match: GET /, header: [X-A] }
  empty: { match: [] }
"
    ));
    let segments = "/a".repeat(33);
    let methods: Vec<String> = (0..33).map(|index| format!("M{index}")).collect();
    let long = format!(
        "{{ tidegate: 1, name: n, operations: {{ a: {segments}, b: {} / }} }}",
        methods.join("|")
    );
    assert_snapshot!(said(&long));
    let many: String = (0..10_001).map(|index| format!("o{index}: {{}}, ")).collect();
    assert_snapshot!(said(&format!("{{ tidegate: 1, name: n, operations: {{ {many} }} }}")));
}
