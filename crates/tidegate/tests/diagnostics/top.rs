//! The top of a policy: version, name, tiers.

use super::*;

#[test]
fn what_every_policy_needs() {
    assert_snapshot!(each(
        "
            {}
            []
            text
            { tidegate: 2, name: two words }
            { tidegate: , name: }
            { tidegate: [1], name: {} }
            "
    ));
}

#[test]
fn keys_that_do_not_exist() {
    assert_snapshot!(lines(
        "
limit: {}
banana: 1
timezone: Europe/Berlinn
enabled: yes
version: ''
identity: { proxies: [] }
block: { ip: 192.0.2.1 }
defaults: { shadows: true, missing: skip }
response: { header: x, blocked: { code: 403 } }
"
    ));
    assert_snapshot!(lines("timezone: Middle-earth\nenabled: {}\nversion: [1]\n"));
}

#[test]
fn sections_of_the_wrong_kind() {
    assert_snapshot!(lines(
        "
tiers: { free: 1 }
identity: [user]
operations: login
exempt: [login, []]
block: 192.0.2.1
limits: []
defaults: shadow
response:
"
    ));
}

#[test]
fn tiers() {
    assert_snapshot!(lines(
        "
tiers: [free, two words, '']
identity: { default_tier: fre, anonymous_tier: no body }
exempt: { tier: [premium, free] }
limits:
  a: { by: ip, total: { free: 5, preemium: 6 } }
  b: { by: ip, total: { free: 5 } }
  c: { by: user, total: { free: 5 } }
"
    ));
    assert_snapshot!(lines("tiers: []\nidentity: { default_tier: [a], anonymous_tier: }\n"));
    let many: Vec<String> = (0..101).map(|index| format!("t{index}")).collect();
    let many = many.join(", ");
    let found = diagnostics(&format!("{{ tidegate: 1, name: n, tiers: [{many}] }}"), None);
    assert_snapshot!(&found.iter().next().unwrap().message);
}

#[test]
fn names_of_tiers_are_checked_wherever_a_tier_is_named() {
    assert_snapshot!(lines(
        "
identity: { default_tier: free of charge }
exempt: { tier: [in ternal] }
limits:
  a: { by: ip, total: { free of charge: 5, default: 6 } }
"
    ));
}
