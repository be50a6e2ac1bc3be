//! `tidegate test`, for people and for scripts.

mod binary;

use binary::{BROKEN, CommandOutput, Folder, SHOP};
use insta::assert_snapshot;
use serde_json::json;

const GOOD: &str = "policy: shop.yaml
tests:
  - name: two orders a minute
    request: { method: POST, path: /orders/s1, ip: 192.0.2.1, attributes: { amount: 5 } }
    steps:
      - { times: 2, expect: allowed }
      - { expect: { outcome: limited, limit: order-ip, retry_after: 60s, status: 429 } }
      - { at: 60s, expect: allowed }
  - name: health is exempt
    steps:
      - { times: 100, request: { method: GET, path: /health }, expect: exempt }
";

const FAILING: &str = "policy: shop.yaml
tests:
  - name: three orders a minute
    request: { method: POST, path: /orders/s1, ip: 192.0.2.1, attributes: { amount: 2.50 } }
    steps:
      - { request: { ip: 192.0.2.2 } }
      - { at: 5s, times: 3, spread: 1s, expect: { outcome: allowed, status: 200 } }
  - name: a lease that nobody gave
    request: { method: GET, path: /health }
    steps:
      - {}
      - { settle: { cost: 5 } }
  - name: a request that cannot be decided
    steps:
      - { request: { method: POST, path: /orders/s1, ip: 192.0.2.1 }, expect: allowed }
";

fn shop() -> Folder {
    Folder::with(&[
        ("shop.yaml", SHOP),
        ("good.test.yaml", GOOD),
        ("failing.test.yaml", FAILING),
        ("notes.yaml", "not: a test"),
    ])
}

fn last_line(ran: &CommandOutput) -> &str {
    ran.out.lines().last().unwrap_or_default()
}

/// The report without its duration.
fn transcript(ran: &CommandOutput) -> String {
    let timeless = |line: &str| match line.split_once(" in ") {
        Some((before, _)) if line.contains(" simulated ") => format!("{before} in …"),
        _ => line.to_owned(),
    };
    ran.transcript().lines().map(timeless).collect::<Vec<_>>().join("\n")
}

#[test]
fn tests_that_pass_end_with_0() {
    let ran = shop().run(&["test", "good.test.yaml"]);
    ran.assert_plain();
    assert_snapshot!(transcript(&ran));
}

#[test]
fn a_failure_names_the_step_what_was_expected_and_the_states_of_the_limits() {
    let ran = shop().run(&["test", "failing.test.yaml"]);
    ran.assert_plain();
    assert_snapshot!(transcript(&ran));
}

#[test]
fn json_has_every_field_of_a_failure() {
    let ran = shop().run(&["test", "--json", "good.test.yaml", "failing.test.yaml"]);
    assert_eq!(ran.code, 1);
    let json = ran.json();
    let total = (&json["passed"], &json["failed"], &json["requests"]);
    assert_eq!(total, (&json!(2), &json!(3), &json!(104 + 4 + 1 + 1)));
    let (good, failing) = (&json["files"][0], &json["files"][1]);
    let expected =
        json!({ "name": "two orders a minute", "passed": true, "requests": 4, "failure": null });
    assert_eq!(good["tests"][0], expected);
    let test = &failing["tests"][0];
    assert_eq!((&test["passed"], &test["requests"]), (&json!(false), &json!(4)));
    let failure = &test["failure"];
    let place = (&failure["line"], &failure["column"], &failure["step"]);
    assert_eq!(place, (&json!(7), &json!(9), &json!(2)));
    assert_eq!((&failure["repetition"], &failure["at"]), (&json!(3), &json!("7s")));
    let mismatches = json!([
        { "what": "outcome", "expected": "allowed", "found": "limited" },
        { "what": "status", "expected": "200", "found": "429" },
    ]);
    assert_eq!(failure["mismatches"], mismatches);
    let limits = failure["limits"].as_array().unwrap();
    assert_eq!(limits.len(), 3);
    assert_eq!(
        limits[0],
        "order-ip: sliding_window 2/min denies cost 1, remaining 0, reset 59s, retry after 58s"
    );
}

#[test]
fn a_filter_runs_only_tests_whose_name_contains_it() {
    let folder = shop();
    let ran = folder.run(&["test", "--filter", "orders", "good.test.yaml", "failing.test.yaml"]);
    assert_eq!((ran.code, last_line(&ran)), (1, "1 passed, 1 failed"));
    assert!(!ran.out.contains("health"), "{}", ran.out);
    let none = folder.run(&["test", "--filter", "nothing", "good.test.yaml"]);
    assert_eq!((none.code, last_line(&none)), (1, "0 passed, 0 failed"));
    assert!(none.out.contains("no test's name contains `nothing`"), "{}", none.out);
}

#[test]
fn a_folder_stands_for_the_test_files_in_it() {
    let folder = shop();
    let ran = folder.run(&["test", "."]);
    assert_eq!((ran.code, last_line(&ran)), (1, "2 passed, 3 failed"));
    let at = |file: &str| ran.out.find(file).unwrap_or_else(|| panic!("{file}: {}", ran.out));
    assert!(at("./failing.test.yaml") < at("./good.test.yaml"));
    assert!(!ran.out.contains("notes.yaml"), "{}", ran.out);
    folder.write("empty/notes.yaml", "not: a test");
    let empty = folder.run(&["test", "empty"]);
    assert_eq!((empty.code, empty.err.as_str()), (1, "error: empty holds no *.test.yaml\n"));
}

#[test]
fn many_files_run_in_parallel_and_are_told_in_order() {
    let folder = shop();
    let names: Vec<String> = (0..40).map(|index| format!("t{index:02}.test.yaml")).collect();
    names.iter().for_each(|name| folder.write(name, GOOD));
    let mut arguments = vec!["test", "--json"];
    arguments.extend(names.iter().map(String::as_str));
    let json = folder.run(&arguments).json();
    assert_eq!((&json["passed"], &json["failed"]), (&json!(80), &json!(0)));
    let told = json["files"].as_array().unwrap().iter().map(|file| file["file"].clone());
    assert_eq!(told.collect::<Vec<_>>(), names);
}

#[test]
fn a_file_that_cannot_be_run_is_a_failure_and_the_others_run() {
    let folder = shop();
    folder.write("binary.test.yaml", [0xff, 0x00]);
    folder.write("large.test.yaml", "#".repeat(2 << 20));
    folder.write("no-policy.test.yaml", GOOD.replace("shop.yaml", "gone.yaml"));
    folder.write("broken.yaml", BROKEN);
    folder.write("broken-policy.test.yaml", GOOD.replace("shop.yaml", "broken.yaml"));
    folder.write("wrong.test.yaml", "{ policy: shop.yaml, tests: [{ name: n, stepz: [] }] }");
    let files = [
        "missing.test.yaml",
        "binary.test.yaml",
        "large.test.yaml",
        "no-policy.test.yaml",
        "broken-policy.test.yaml",
        "wrong.test.yaml",
        "good.test.yaml",
    ];
    let ran = folder.run(&[&["test"], &files[..]].concat());
    assert_eq!(last_line(&ran), "2 passed, 6 failed");
    assert_snapshot!(transcript(&ran));
    let json = folder.run(&[&["test", "--json"], &files[..]].concat()).json();
    assert_eq!(json["files"][0]["error"].as_str().map(|error| &error[..11]), Some("cannot read"));
    assert_eq!(json["files"][4]["invalid"], "broken.yaml");
    assert_eq!(json["files"][4]["diagnostics"][0]["line"], 5);
    assert_eq!(json["files"][5]["invalid"], "wrong.test.yaml");
}

#[test]
fn the_policy_is_found_beside_the_test_file() {
    let folder = Folder::with(&[("a/b/shop.yaml", SHOP), ("a/b/shop.test.yaml", GOOD)]);
    let ran = folder.run(&["test", "a/b/shop.test.yaml"]);
    assert_eq!((ran.code, last_line(&ran)), (0, "2 passed, 0 failed"), "{}", ran.out);
}

#[test]
fn a_test_sees_its_own_environment_and_profile_only() {
    let policy = "{ tidegate: 1, name: n, limits: { a: { by: global, total: \"${MAX:-1}\" } },
  profiles: { wide: { limits: { a: { total: 3 } } } } }";
    let test = |head: &str, passing: u32| {
        format!(
            "{head}\npolicy: n.yaml\ntests:\n  - name: n\n    steps:\n      - {{ times: {passing}, expect: allowed }}\n      - {{ expect: limited }}\n"
        )
    };
    let folder = Folder::with(&[("n.yaml", policy)]);
    folder.write("env.test.yaml", test("env: { MAX: 2 }", 2));
    folder.write("profile.test.yaml", test("profile: wide", 3));
    folder.write("plain.test.yaml", test("env: { MAX: null }", 1));
    let ran = folder.run_with(&["test", "."], &[("MAX", "9")]);
    assert_eq!((ran.code, last_line(&ran)), (0, "3 passed, 0 failed"), "{}", ran.out);
}
