//! The `identity:` section.

use super::*;

#[test]
fn addresses_and_headers() {
    assert_snapshot!(lines(
        "
identity:
  trusted_proxies: [localhost, 10.0.0.0/33, '::1/129', 10.0.0.0/x, '::ffff:10.0.0.0/8', [], ~]
  forwarded: x-forwarded-fro
  ipv6_prefix: 129
  user: { header: X User }
  tier: {}
  internal: { header: X-Internal }
"
    ));
    assert_snapshot!(lines(
        "
identity:
  trusted_proxies: []
  forwarded: { header: via }
  ipv6_prefix: /64
  user: X-User
  tier: { header: , cookie: tier }
  internal: { header: X-Internal, secret_env: UNSET }
"
    ));
    assert_snapshot!(lines("identity: { internal: { header: ':', secret_env: SET } }"));
    assert_snapshot!(lines("identity: { internal: { header: A, secret_env: } }"));
    assert_snapshot!(lines("identity: { internal: internal }"));
}

#[test]
fn claims() {
    assert_snapshot!(lines(
        "
identity:
  user: { jwt: sub, header: X-User }
  tier: { jwt: }
  attributes:
    twice: { jwt: a, body: /a }
    list: { jwt: [a] }
    empty: { jwt: '' }
    trusted: { jwt: a, trusted: true }
    misspelt: { jvt: a }
"
    ));
    assert_snapshot!(lines("identity: { user: { jtw: sub } }"));
}

#[test]
fn how_attributes_are_read() {
    assert_snapshot!(lines(
        "
identity:
  attributes:
    cookie: { cookie: a b }
    format: { body: /a, type: xml }
    query: { query: a, type: json, count: true }
    text: { body: /a, as: text }
    folded: { body: /a, as: number, fold: true }
    counted: { body: /a, count: true, as: number }
    list: { body: /a, count: true, type: form }
    nested: { body: /a/b, type: form }
    misspelt: { cokie: a }
"
    ));
}

#[test]
fn attributes() {
    assert_snapshot!(lines(
        "
identity:
  attributes:
    two words: given
    ip: given
    header.x: given
    taken: taken
    nothing:
    list: [given]
    none: {}
    two: { header: A, query: a }
    space: { header: A B }
    empty: { query: '' }
    pointer: { body: email }
    nowhere: { body: }
    flags: { header: A, fold: yes, trusted: 1 }
    trusted: { query: a, trusted: true }
    unknown: { heder: A }
"
    ));
    assert_snapshot!(lines("identity: { attributes: [email] }"));
    let many: String = (0..101).map(|index| format!("a{index}: given, ")).collect();
    let many = format!("{{ tidegate: 1, name: n, identity: {{ attributes: {{ {many} }} }} }}");
    assert_snapshot!(said(&many));
}
