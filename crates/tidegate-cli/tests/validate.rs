//! `tidegate validate`, for people and for scripts.

mod binary;

use binary::{BROKEN, Folder, SHOP};
use insta::assert_snapshot;
use serde_json::json;

#[test]
fn a_valid_policy_ends_with_0() {
    let ran = Folder::with(&[("shop.yaml", SHOP)]).run(&["validate", "shop.yaml"]);
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (0, "shop.yaml: valid\n", ""));
}

#[test]
fn every_error_is_shown_with_its_line_and_ends_with_1() {
    let folder = Folder::with(&[("broken.yaml", BROKEN), ("shop.yaml", SHOP)]);
    let ran = folder.run(&["validate", "broken.yaml", "shop.yaml"]);
    ran.assert_plain();
    assert_snapshot!(ran.transcript());
}

#[test]
fn warnings_alone_end_with_0() {
    let warned = "{ tidegate: 1, name: n, limits: { a: { by: user, total: 5 } } }";
    let ran = Folder::with(&[("warned.yaml", warned)]).run(&["validate", "warned.yaml"]);
    assert_snapshot!(ran.transcript());
}

#[test]
fn warnings_are_errors_if_that_is_asked_for() {
    let warned = "{ tidegate: 1, name: n, limits: { a: { by: user, total: 5 } } }";
    let folder = Folder::with(&[("warned.yaml", warned), ("shop.yaml", SHOP)]);
    let ran = folder.run(&["validate", "--strict", "warned.yaml", "shop.yaml"]);
    assert_eq!(ran.code, 1);
    assert!(ran.out.ends_with("warned.yaml: not valid, 0 errors, 1 warning\nshop.yaml: valid\n"));
    let json = folder.run(&["validate", "--strict", "--json", "warned.yaml", "shop.yaml"]).json();
    assert_eq!(
        (&json["files"][0]["valid"], &json["files"][1]["valid"]),
        (&json!(false), &json!(true))
    );
    assert_eq!(json["files"][0]["diagnostics"][0]["severity"], "warning");
    assert_eq!(folder.run(&["validate", "--strict", "shop.yaml"]).code, 0);
}

#[test]
fn json_has_every_field_of_every_file() {
    let folder = Folder::with(&[("broken.yaml", BROKEN), ("shop.yaml", SHOP)]);
    let ran = folder.run(&["validate", "--json", "broken.yaml", "shop.yaml"]);
    assert_eq!(ran.code, 1);
    let json = ran.json();
    let (broken, shop) = (&json["files"][0], &json["files"][1]);
    assert_eq!(*shop, json!({ "file": "shop.yaml", "valid": true, "diagnostics": [] }));
    assert_eq!((&broken["file"], &broken["valid"]), (&json!("broken.yaml"), &json!(false)));
    assert_eq!(
        broken["diagnostics"][0],
        json!({
            "severity": "error",
            "line": 5,
            "column": 18,
            "message": "found the key `sliding_windw`, which the limit `a` does not have",
            "help": "did you mean `sliding_window`?",
            "profile": null,
        })
    );
    let severities = broken["diagnostics"].as_array().unwrap().iter().map(|one| &one["severity"]);
    assert_eq!(severities.collect::<Vec<_>>(), ["error", "error"]);
}

#[test]
fn every_profile_is_checked_and_named() {
    let text =
        format!("{SHOP}  tight: {{ limits: {{ order-ip: {{ sliding_window: 0/min }} }} }}\n");
    let folder = Folder::with(&[("shop.yaml", text.as_str())]);
    assert_snapshot!(folder.run(&["validate", "shop.yaml"]).transcript());
    let json = folder.run(&["validate", "--json", "shop.yaml"]).json();
    assert_eq!(json["files"][0]["diagnostics"][0]["profile"], "tight");
    assert_eq!(folder.run(&["validate", "--profile", "loose", "shop.yaml"]).code, 0);
    assert_eq!(folder.run(&["validate", "--profile", "tight", "shop.yaml"]).code, 1);
    assert_eq!(folder.run(&["validate", "--profile", "tight,loose", "shop.yaml"]).code, 0);
    assert_eq!(folder.run(&["validate", "--profile", "loose,tight", "shop.yaml"]).code, 1);
    let unknown = folder.run(&["validate", "--profile", "loose,lose", "shop.yaml"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.out.contains("did you mean `loose`?"), "{}", unknown.out);
}

#[test]
fn variables_come_from_the_environment() {
    let folder = Folder::with(&[("p.yaml", "{ tidegate: 1, name: \"${TIDEGATE_TEST_NAME}\" }")]);
    let unset = folder.run(&["validate", "p.yaml"]);
    assert_eq!(unset.code, 1);
    assert!(unset.out.contains("`TIDEGATE_TEST_NAME` is not set"), "{}", unset.out);
    let set = folder.run_with(&["validate", "p.yaml"], &[("TIDEGATE_TEST_NAME", "n")]);
    assert_eq!(set.code, 0, "{}", set.out);
}

#[test]
fn files_that_cannot_be_read_are_named_and_the_others_checked() {
    let folder = Folder::with(&[("shop.yaml", SHOP)]);
    folder.write("binary.yaml", [0xff, 0xfe, 0x00, 0x80]);
    folder.write("large.yaml", "é".repeat(1 << 20));
    folder.write("folder/shop.yaml", SHOP);
    let files = ["missing.yaml", "binary.yaml", "large.yaml", "folder", "shop.yaml"];
    let ran = folder.run(&[&["validate"], &files[..]].concat());
    assert_snapshot!(ran.transcript());
    let ran = folder.run(&[&["validate", "--json"], &files[..]].concat());
    assert_eq!(ran.code, 1);
    let json = ran.json();
    for (index, file) in files.into_iter().enumerate() {
        let said = &json["files"][index];
        assert_eq!((&said["file"], &said["valid"]), (&json!(file), &json!(file == "shop.yaml")));
        assert_eq!(said["error"].is_string(), file != "shop.yaml", "{said}");
    }
}

#[test]
fn a_policy_of_2_mib_is_refused_by_its_size() {
    let folder = Folder::new();
    folder.write("large.yaml", format!("{SHOP}{}", "# filler\n".repeat(240_000)));
    let ran = folder.run(&["validate", "large.yaml"]);
    let expected = "error: cannot read large.yaml: it is larger than 1 MiB\n";
    assert_eq!((ran.code, ran.out.as_str(), ran.err.as_str()), (1, "", expected));
}

#[test]
fn no_file_at_all_is_a_wrong_call() {
    let ran = Folder::new().run(&["validate"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("<POLICY>"), "{}", ran.err);
}

#[test]
fn the_examples_are_valid_without_warnings() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies");
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let files: Vec<String> = files.map(|file| file.display().to_string()).collect();
    let policies = files.iter().map(String::as_str).filter(|file| !file.contains(".test.yaml"));
    let arguments: Vec<&str> = ["validate", "--strict"].into_iter().chain(policies).collect();
    assert!(arguments.len() > 6, "{arguments:?}");
    let ran = Folder::new().run(&arguments);
    assert_eq!(ran.code, 0, "{}", ran.out);
}
