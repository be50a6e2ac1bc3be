//! Large inputs: whatever fills the mebibyte that a document may have, reading it ends soon.
//!
//! In a release build each case must end within two seconds; `--nocapture` prints how long it took.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use tidegate::Policy;
use tidegate::engine::policy::Options;
use tidegate::engine::simulate::TestFile;

const BYTES_MAX: usize = 1 << 20;

/// Debug builds are slower, and a test machine may be busy.
const SLOWEST: Duration = Duration::from_secs(if cfg!(debug_assertions) { 30 } else { 2 });

#[test]
fn yaml_that_is_large_in_one_way() {
    ends("brackets", &filled("a: ", "["));
    ends("closed brackets", &format!("a: {}{}", "[".repeat(500_000), "]".repeat(500_000)));
    ends("braces", &filled("a: ", "{a: "));
    ends("dashes", &filled("", "- "));
    ends("list", &filled("", "- x\n"));
    ends("flow list", &format!("a: [{}]", filled("", "1,")));
    ends("indents", &(0..1_000).map(|n| format!("{}a:\n", " ".repeat(n))).collect::<String>());
    ends("short keys", &numbered("", |n| format!("k{n}: 1\n")));
    ends("keys without values", &numbered("", |n| format!("k{n}:\n")));
    ends("same key", &filled("", "a: 1\n"));
    ends("complex keys", &filled("", "? a\n"));
    ends("plain scalar", &filled("a: ", "x"));
    ends("plain lines", &filled("a: x\n", "  word\n"));
    ends("empty lines", &filled("a: x", "\n"));
    ends("spaces", &filled("a: ", " "));
    ends("single quotes", &format!("a: '{}'", "''".repeat(500_000)));
    ends("double quotes", &format!("a: \"{}\"", "\\x41".repeat(250_000)));
    ends("quoted lines", &format!("a: \"{}\"", "x\n\n ".repeat(200_000)));
    ends("open quote", &filled("a: \"", "x\n "));
    ends("literal block", &filled("a: |\n", "  x\n"));
    ends("folded block", &filled("a: >\n", "  x\n\n"));
    ends("comments", &filled("", "# x\n"));
    ends("anchors", &numbered("", |n| format!("k{n}: &a{n} x\n")));
    ends("aliases", &filled("a: &a [x, x]\nb:\n", "- *a\n"));
    ends("aliased text", &filled(&format!("a: &a {}\nb:\n", "x".repeat(500_000)), "- *a\n"));
    ends("tags", &filled("a: ", "!a "));
    ends("colons", &filled("a", ":"));
    ends("colon keys", &filled("", "a: b: "));
    ends("documents", &filled("", "---\n"));
    ends("directives", &filled("", "%YAML 1.2\n"));
    ends("tabs", &filled("a:\n", "\t"));
    ends("carriage returns", &filled("a: x", "\r"));
}

#[test]
fn policies_that_are_large_in_one_way() {
    ends("variables", &policy(&format!("version: \"{}\"\n", "${X:-}".repeat(170_000))));
    ends("unset variables", &policy(&format!("version: \"{}\"\n", "${X}".repeat(200_000))));
    ends(
        "braces in a body",
        &policy(&format!("response: {{ body: \"{}\" }}\n", "{".repeat(1_000_000))),
    );
    ends(
        "words in a body",
        &policy(&format!("response: {{ body: \"{}\" }}\n", "{a".repeat(500_000))),
    );
    ends("unknown keys", &policy(&numbered("", |n| format!("limitz{n}: 1\n"))));
    ends("exemptions", &policy(&filled("exempt:\n", "- {path: /a}\n")));
    ends(
        "networks",
        &policy(&numbered("block:\n  ips:\n", |n| {
            format!("  - 10.{}.{}.1\n", n % 256, n / 256 % 256)
        })),
    );
    ends("tiers", &policy(&numbered("tiers:\n", |n| format!("- t{n}\n"))));
    ends(
        "unnamed tiers",
        &policy(&numbered("limits:\n  a:\n    by: ip\n    total:\n", |n| {
            format!("      t{n}: 1\n")
        })),
    );
    ends(
        "tiers and operations",
        &policy(&format!(
            "tiers: [{}]\noperations: {{{}}}\nlimits: {{a: {{when: [{}], by: ip, total: 1}}}}\n",
            listed(90, |n| format!("t{n}")),
            listed(8_000, |n| format!("o{n}: {{}}")),
            listed(8_000, |n| format!("o{n}")),
        )),
    );
    ends(
        "attributes",
        &policy(&numbered("identity:\n  attributes:\n", |n| format!("    a{n}: given\n"))),
    );
}

#[test]
fn many_operations() {
    let operations = |pattern: &dyn Fn(usize) -> String| {
        policy(&format!("operations:\n{}", lines(10_000, |n| format!("  o{n}: {}\n", pattern(n)))))
    };
    ends("one pattern each", &operations(&|n| format!("GET /api/v1/r{n}/{{id}}/things/*")));
    ends("the same pattern", &operations(&|_| "GET /api/v1/{id}".to_owned()));
    ends("stars", &operations(&|n| format!("/**/a/*/{n}/**")));
    ends(
        "patterns of one operation",
        &policy(&numbered("operations:\n  o:\n    match:\n", |n| format!("    - /a{n}\n"))),
    );
    ends(
        "equal patterns of one operation",
        &policy(&filled("operations:\n  o:\n    match:\n", "    - /a\n")),
    );
    ends("methods", &operations(&|n| format!("M{n} /a")));
    ends(
        "actions",
        &policy(&format!(
            "operations:\n{}",
            lines(10_000, |n| format!("  o{n}: {{match: /rpc, header: {{x-a: a{n}}}}}\n"))
        )),
    );
}

#[test]
fn many_limits() {
    let limits = |count: usize, limit: &dyn Fn(usize) -> String| {
        format!("limits:\n{}", lines(count, |n| format!("  l{n}: {}\n", limit(n))))
    };
    ends(
        "limits everywhere",
        &policy(&limits(1_000, &|_| "{by: ip, token_bucket: 5/s}".to_owned())),
    );
    ends("too many limits", &policy(&limits(20_000, &|_| "{by: ip, total: 5}".to_owned())));
    let operations = format!("operations:\n{}", lines(10_000, |n| format!("  o{n}: /a{n}\n")));
    ends(
        "limits per operation",
        &policy(&format!(
            "{operations}{}",
            limits(1_000, &|n| {
                format!(
                    "{{when: [{}], by: user, quota: 5/day}}",
                    listed(40, |m| format!("o{}", n * 10 + m))
                )
            })
        )),
    );
    ends(
        "long lists of operations",
        &policy(&format!(
            "{operations}{}",
            limits(100, &|_| {
                format!("{{when: [{}], by: user, quota: 5/day}}", listed(900, |m| format!("o{m}")))
            })
        )),
    );
    ends(
        "unknown operations",
        &policy(&format!(
            "{operations}limits: {{a: {{by: ip, total: 1, when: [{}]}}}}",
            listed(60_000, |n| format!("p{n}"))
        )),
    );
    ends("parts", &policy(&format!("limits: {{a: {{total: 1, by: [{}]}}}}", filled("", "ip,"))));
    ends(
        "unknown parts",
        &policy(&format!(
            "limits: {{a: {{total: 1, by: [{}]}}}}",
            listed(90_000, |n| format!("x{n}"))
        )),
    );
    let captured = format!(
        "operations:\n{}",
        lines(5_000, |n| format!("  o{n}: /a{n}/{{room}}\n  p{n}: /b{n}\n"))
    );
    ends(
        "captures out of scope",
        &policy(&format!(
            "{captured}limits: {{a: {{total: 1, by: [{}], when: [{}]}}}}",
            "room,".repeat(50_000),
            listed(5_000, |n| format!("p{n}"))
        )),
    );
    ends(
        "a long key",
        &policy(&format!(
            "limits: {{a: {{total: 1, by: ip, key: \"{}\"}}}}",
            "{ip}".repeat(250_000)
        )),
    );
    let tiers = format!("tiers: [{}]\n", listed(90, |n| format!("t{n}")));
    ends(
        "tier maps",
        &policy(&format!(
            "{tiers}{}",
            limits(500, &|_| format!(
                "{{by: ip, total: {{{}}}}}",
                listed(90, |n| format!("t{n}: 1"))
            ))
        )),
    );
}

#[test]
fn large_profiles() {
    let keys = |value: &str| lines(24_000, |n| format!("    k{n}: {value}\n"));
    let body = |value: &str| format!("response:\n  body:\n{}", keys(value));
    let profile = |value: &str| body(value).replace('\n', "\n    ");
    for value in ["1", "null"] {
        let text = policy(&format!("{}profiles:\n  p:\n    {}\n", body("1"), profile(value)));
        timed("profile", || {
            let options = Options { profile: Some("p".to_owned()), ..Options::default() };
            drop(Policy::check("p.yaml", &text[..], &options));
        });
    }
}

#[test]
fn large_test_files() {
    let file = |test: &str| format!("policy: p.yaml\ntests:\n- name: t\n{test}");
    let request = |size: usize| format!("  request: {{path: /{}}}\n  steps:\n", "x".repeat(size));
    for (name, text) in [
        ("steps", filled(&file("  steps:\n"), "  - {}\n")),
        ("steps with a large request", filled(&file(&request(500_000)), "  - {}\n")),
        (
            "tests",
            numbered("policy: p.yaml\ntests:\n", |n| format!("- {{name: t{n}, steps: [{{}}]}}\n")),
        ),
        ("tests of one name", filled("policy: p.yaml\ntests:\n", "- {name: t, steps: [{}]}\n")),
    ] {
        timed(name, || {
            if let Ok(file) = TestFile::parse("t.yaml", &text) {
                drop(file.run("p.yaml", &policy(""), None));
            }
        });
    }
}

fn policy(rest: &str) -> String {
    let mut text = format!("tidegate: 1\nname: large\n{rest}");
    text.truncate(BYTES_MAX);
    text
}

/// As many pieces behind a start as a document may hold.
fn filled(start: &str, piece: &str) -> String {
    let count = (BYTES_MAX - 100 - start.len()) / piece.len();
    format!("{start}{}", piece.repeat(count))
}

/// As many numbered pieces behind a start as a document may hold.
fn numbered(start: &str, piece: impl Fn(usize) -> String) -> String {
    let mut text = start.to_owned();
    // Not all the way: some are read as part of something larger.
    for n in (0..).take_while(|n| *n < 90_000) {
        let before = text.len();
        let _ = write!(text, "{}", piece(n));
        if text.len() > BYTES_MAX - 100 {
            text.truncate(before);
            break;
        }
    }
    text
}

fn lines(count: usize, line: impl Fn(usize) -> String) -> String {
    (0..count).map(line).collect()
}

fn listed(count: usize, item: impl Fn(usize) -> String) -> String {
    (0..count).map(item).collect::<Vec<_>>().join(",")
}

fn ends(name: &str, text: &str) {
    timed(name, || drop(Policy::check("p.yaml", text, &Options::default())));
}

#[allow(clippy::disallowed_methods, reason = "how long it takes is what is tested")]
fn timed(name: &str, act: impl FnOnce()) {
    let started = Instant::now();
    act();
    let took = started.elapsed();
    println!("{:>8.3} s  {name}", took.as_secs_f64());
    assert!(took < SLOWEST, "{name}: {took:?}");
}
