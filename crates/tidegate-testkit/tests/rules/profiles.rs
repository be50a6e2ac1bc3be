//! Rule 9: profiles and variables.

use tidegate::engine::policy::Options;
use tidegate::{Limiter, Policy, Request};

const POLICY: &str = "
tidegate: 1
name: api
tiers: [free, pro]
identity: { default_tier: free }
limits:
  a: { by: user, quota: { free: 5/day, pro: \"${PRO:-50}/day\" }, message: \"more than ${NAME:-you} may\" }
  b: { by: user, total: 9 }
block: { ips: [192.0.2.1, 192.0.2.2] }
profiles:
  loose: { limits: { a: { quota: { free: 500/day } }, b: null } }
  other: { limits: { a: { token_bucket: \"${RATE}/s\" } }, block: { ips: [192.0.2.9] } }
";

fn check(profile: Option<&str>, env: &[(&str, &str)]) -> Result<Limiter, String> {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let options = Options { profile: profile.map(str::to_owned), env };
    let checked = Policy::check("api.yaml", POLICY, &options);
    checked.map(|checked| Limiter::new(checked.policy)).map_err(|errors| errors.to_string())
}

/// The limits that apply to a user of this tier, as `name spec`.
fn limits(limiter: &Limiter, tier: &str) -> Vec<String> {
    let request = Request::new("GET", "/").user("u").tier(tier);
    let explained = limiter.explain(&request).unwrap().limits.into_iter();
    explained.map(|limit| format!("{} {}", limit.name, limit.applies.unwrap().spec)).collect()
}

fn is_blocked(limiter: &Limiter, ip: &str) -> bool {
    limiter.explain(&Request::new("GET", "/").ip(ip.parse().unwrap())).unwrap().standing
        == "blocked"
}

#[test]
fn maps_merge_specs_replace_and_null_deletes_rule_9() {
    assert_eq!(limits(&check(None, &[]).unwrap(), "pro"), ["a 50/day", "b 9"]);
    let loose = check(Some("loose"), &[]).unwrap();
    assert_eq!(limits(&loose, "free"), ["a 500/day"]);
    assert_eq!(limits(&loose, "pro"), ["a 50/day"], "a tier map is a map");
}

#[test]
fn a_new_algorithm_replaces_the_old_and_lists_replace_rule_9() {
    let other = check(Some("other"), &[("RATE", "7")]).unwrap();
    assert_eq!(limits(&other, "free"), ["a 7/s", "b 9"]);
    assert!(is_blocked(&other, "192.0.2.9") && !is_blocked(&other, "192.0.2.1"));
}

#[test]
fn variables_are_typed_as_if_written_there_rule_9() {
    assert_eq!(limits(&check(None, &[("PRO", "1k")]).unwrap(), "pro")[0], "a 1000/day");
    let wrong = check(None, &[("PRO", "many")]).unwrap_err();
    assert!(wrong.contains("api.yaml:7:"), "{wrong}");
    assert!(wrong.contains("`many`"), "{wrong}");
}

#[test]
fn a_null_that_a_profile_brings_into_a_body_is_still_an_error_rule_9() {
    let text = format!("{POLICY}  body: {{ response: {{ body: {{ wait: {{retry_after}} }} }} }}\n");
    let options = Options { profile: Some("body".to_owned()), ..Options::default() };
    let wrong = Policy::check("api.yaml", &text, &options).unwrap_err().to_string();
    assert!(wrong.contains("quote the braces"), "{wrong}");
}

#[test]
fn an_unset_variable_without_default_is_an_error_only_where_it_is_used_rule_9() {
    assert!(check(None, &[]).is_ok());
    let wrong = check(Some("other"), &[]).unwrap_err();
    assert!(wrong.contains("`RATE` is not set"), "{wrong}");
}
