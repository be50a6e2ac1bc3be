//! `tidegate export`, and properties of every command: help, suggestions, exit codes.

mod binary;

use binary::{Folder, SHOP};

fn run(arguments: &[&str]) -> binary::CommandOutput {
    Folder::with(&[("shop.yaml", SHOP)]).run(arguments)
}

#[test]
fn the_schema_is_printed_as_it_is() {
    let ran = run(&["export", "schema"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(ran.out, tidegate::engine::policy::json_schema());
    let schema = ran.json();
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert_eq!(schema["$id"], "tidegate-policy-1");
}

#[test]
fn the_help_of_every_command_has_an_example() {
    for command in ["validate", "test", "explain", "export"] {
        for form in [&[command, "--help"][..], &[command, "-h"], &["help", command]] {
            let ran = run(form);
            assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{form:?}");
            ran.assert_plain();
            let (_, examples) = ran.out.split_once("Example").unwrap_or_default();
            assert!(examples.contains(&format!("tidegate {command} ")), "{form:?}: {}", ran.out);
        }
    }
}

#[test]
fn the_examples_of_the_help_are_calls_that_work() {
    let ran = run(&["explain", "--help"]);
    for flag in ["--method", "--path", "--user", "--tier", "--ip", "--attr", "--header", "--json"] {
        assert!(ran.out.contains(flag), "{flag}");
    }
    let folder = Folder::with(&[("policy.yaml", SHOP)]);
    for call in [
        &["validate", "policy.yaml"][..],
        &["explain", "policy.yaml", "--path", "/orders", "--attr", "amount_usd=12.50"],
    ] {
        assert_ne!(folder.run(call).code, 2, "{call:?}");
    }
}

#[test]
fn the_overview_names_every_command() {
    let ran = run(&["--help"]);
    assert_eq!(ran.code, 0);
    for command in ["validate", "test", "explain", "export"] {
        assert!(ran.out.contains(&format!("  {command} ")), "{command}: {}", ran.out);
    }
    let version = run(&["--version"]);
    assert_eq!(version.out, format!("tidegate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn a_misspelt_command_is_answered_with_the_nearest() {
    for (misspelt, meant) in [("validat", "validate"), ("tests", "test"), ("explian", "explain")] {
        let ran = run(&[misspelt, "shop.yaml"]);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{misspelt}");
        assert!(ran.err.contains(&format!("'{meant}'")), "{}", ran.err);
        ran.assert_plain();
    }
    let ran = run(&["export", "schem"]);
    assert!(ran.code == 2 && ran.err.contains("'schema'"), "{}", ran.err);
}

#[test]
fn a_misspelt_option_is_answered_with_the_nearest() {
    let ran = run(&["validate", "--jsn", "shop.yaml"]);
    assert!(ran.code == 2 && ran.err.contains("'--json'"), "{}", ran.err);
}

#[test]
fn no_command_shows_the_overview_and_ends_with_2() {
    let ran = run(&[]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    assert!(ran.err.contains("Usage: tidegate <COMMAND>"), "{}", ran.err);
}
