//! Every package that Tidegate is built from has a licence that its users can accept.
//!
//! Reads the resolved packages of this workspace, without a network, for the platform the test runs
//! on: those are the ones a build has fetched.

use std::process::Command;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

/// Permissive licences, and MPL-2.0, whose duties end at its own files.
const ALLOWED: [&str; 14] = [
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "Unlicense",
    "CC0-1.0",
    "0BSD",
    "BSL-1.0",
    "MPL-2.0",
];

/// Licences of data that a package carries, allowed for that package alone. These are the root
/// certificates of Mozilla, whose licence asks only to be passed on with the data.
const ALLOWED_DATA: [(&str, &str); 1] = [("webpki-roots", "CDLA-Permissive-2.0")];

/// SPDX as the standard has it, and `MIT/Apache-2.0`, which older crates still write.
const MODE: ParseMode = ParseMode { allow_slash_as_or_operator: true, ..ParseMode::STRICT };

#[test]
fn every_package_has_a_licence_on_the_list() {
    let packages = packages().unwrap();
    assert!(packages.iter().any(|package| package.name == "tidegate-cli"), "not this workspace");
    assert!(packages.iter().any(|package| package.name == "spdx"), "no dependencies listed");
    let refusals: Vec<String> = packages.iter().filter_map(refusal).collect();
    assert!(refusals.is_empty(), "\n{}", refusals.join("\n"));
}

#[test]
fn a_package_under_the_gpl_alone_is_refused_by_name() {
    let refusal = refusal(&invented(Some("GPL-3.0-only"))).unwrap();
    for part in ["invented 1.2.3", "GPL-3.0-only", "replace it", "tests/licences.rs"] {
        assert!(refusal.contains(part), "{part} is not in: {refusal}");
    }
}

#[test]
fn a_choice_needs_one_allowed_licence_and_a_sum_needs_all() {
    let allowed = |licence| refusal(&invented(Some(licence))).is_none();
    assert!(allowed("GPL-3.0-only OR MIT"));
    assert!(!allowed("GPL-3.0-only AND MIT"));
    assert!(allowed("(MIT OR Apache-2.0) AND Unicode-3.0"));
    assert!(allowed("MIT/Apache-2.0"));
}

#[test]
fn an_exception_counts_only_where_the_list_names_it() {
    let allowed = |licence| refusal(&invented(Some(licence))).is_none();
    assert!(allowed("Apache-2.0 WITH LLVM-exception"));
    assert!(!allowed("MIT WITH LLVM-exception"));
}

#[test]
fn a_licence_of_data_counts_only_for_the_package_that_carries_it() {
    let licence = Some("CDLA-Permissive-2.0");
    let carrier = Package { name: "webpki-roots".to_owned(), ..invented(licence) };
    assert!(refusal(&carrier).is_none());
    assert!(refusal(&invented(licence)).is_some());
}

#[test]
fn a_package_without_a_readable_licence_is_refused() {
    assert!(refusal(&invented(None)).is_some());
    assert!(refusal(&invented(Some(""))).is_some());
    assert!(refusal(&invented(Some("free for all"))).is_some());
}

struct Package {
    name: String,
    version: String,
    licence: Option<String>,
}

fn invented(licence: Option<&str>) -> Package {
    Package {
        name: "invented".to_owned(),
        version: "1.2.3".to_owned(),
        licence: licence.map(str::to_owned),
    }
}

/// Why this package may not be used and what to do about it; `None` if it may.
fn refusal(package: &Package) -> Option<String> {
    let Package { name, version, licence } = package;
    let Some(licence) = licence else {
        return Some(format!(
            "{name} {version} declares no SPDX licence: read its licence file, then replace the \
             package or ask its authors for a `license` field"
        ));
    };
    let expression = match Expression::parse_mode(licence, MODE) {
        Ok(expression) => expression,
        Err(error) => {
            return Some(format!(
                "{name} {version} has a licence that is not SPDX, `{licence}` ({}): replace it or \
                 ask its authors to correct the field",
                error.reason
            ));
        }
    };
    let on_the_list = expression.evaluate(|required| {
        let data = ALLOWED_DATA.iter().filter(|(package, _)| package == name);
        let mut allowed = ALLOWED.iter().chain(data.map(|(_, licence)| licence));
        allowed.any(|allowed| {
            Licensee::parse(allowed).is_ok_and(|licensee| licensee.satisfies(required))
        })
    });
    (!on_the_list).then(|| {
        format!(
            "{name} {version} is under `{licence}`, which is not on the list: replace it (`cargo \
             tree -i {name}` says who needs it), or, if users of an MIT OR Apache-2.0 program can \
             accept that licence, add it to ALLOWED in crates/tidegate-cli/tests/licences.rs"
        )
    })
}

fn packages() -> Result<Vec<Package>, String> {
    let host = host_triple()?;
    let metadata = output(Command::new(env!("CARGO")).args([
        "metadata",
        "--format-version",
        "1",
        "--locked",
        "--offline",
        "--filter-platform",
        &host,
    ]))
    .map_err(|error| format!("{error}\nrun `cargo fetch --locked` once, then this test again"))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| error.to_string())?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata lists no packages")?;
    packages.iter().map(package).collect()
}

fn package(described: &Value) -> Result<Package, String> {
    let text = |field: &str| described[field].as_str().map(str::to_owned);
    match (text("name"), text("version")) {
        (Some(name), Some(version)) => Ok(Package { name, version, licence: text("license") }),
        _ => Err(format!("a package without a name or version: {described}")),
    }
}

fn host_triple() -> Result<String, String> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let version = output(Command::new(rustc).arg("-vV"))?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(str::to_owned).ok_or_else(|| format!("rustc names no host: {version}"))
}

/// The output of the command, run in this crate's directory.
fn output(command: &mut Command) -> Result<String, String> {
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)));
    }
    String::from_utf8(output.stdout).map_err(|error| error.to_string())
}
