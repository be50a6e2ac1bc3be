//! `tidegate validate`

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};
use tidegate::Policy;
use tidegate::engine::policy::Options;
use tidegate::engine::policy::diagnostics::{Diagnostic, Diagnostics, Severity};
use tidegate_server::files;

use super::Error;
use crate::{paint, say};

/// Check policies: every error and warning, with file, line and column.
///
/// Checks the policy as it stands and once under each of its profiles. `${NAME}` is taken from the
/// environment. Ends with 1 if there is an error; warnings alone end with 0, unless --strict.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  tidegate validate policy.yaml\n  tidegate validate --strict policies/*.yaml\n  tidegate validate --json policy.yaml\n  RATE_LIMIT_DEFAULT_LIMIT=10 tidegate validate --profile production policy.yaml"
)]
pub(crate) struct Arguments {
    /// The policies to check
    #[arg(required = true, value_name = "POLICY")]
    policies: Vec<PathBuf>,
    /// Check only under this profile; several, separated by commas, are laid over in this order
    #[arg(long, value_name = "NAME,…")]
    profile: Option<String>,
    /// Take warnings for errors: for a pipeline that checks changes. `serve` starts with warnings
    #[arg(long)]
    strict: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
}

/// What was found in one file, or why it cannot be read.
type Checked = Result<Findings, (String, Error)>;

struct Findings {
    file: String,
    source: String,
    strict: bool,
    /// Each with the profile under which alone it shows.
    list: Vec<(Option<String>, Diagnostic)>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Error> {
    let check = |path: &PathBuf| {
        let file = path.display().to_string();
        match files::read(path) {
            Ok(source) => Ok(check(file, source, arguments)),
            Err(error) => Err((file, error.into())),
        }
    };
    let all: Vec<Checked> = arguments.policies.iter().map(check).collect();
    if arguments.json {
        say!("{:#}", json!({ "files": all.iter().map(as_json).collect::<Vec<_>>() }));
    } else {
        all.iter().for_each(print);
    }
    Ok(all.iter().flatten().filter(|findings| findings.is_valid()).count() == all.len())
}

fn print(checked: &Checked) {
    match checked {
        Ok(findings) => findings.print(),
        Err((_, error)) => anstream::eprintln!("{}: {error}", paint::bad("error")),
    }
}

fn as_json(checked: &Checked) -> Value {
    match checked {
        Ok(findings) => findings.json(),
        Err((file, error)) => {
            json!({ "file": file, "valid": false, "error": error.to_string(), "diagnostics": [] })
        }
    }
}

fn check(file: String, source: String, arguments: &Arguments) -> Findings {
    let (profile, strict) = (arguments.profile.as_deref(), arguments.strict);
    let env = files::environment();
    let under = |profile: Option<&str>| {
        let options = Options { profile: profile.map(str::to_owned), env: env.clone() };
        Policy::check(&file, &source, &options)
            .map_or_else(|errors| errors, |checked| checked.warnings)
    };
    let mut list = Vec::new();
    let mut add = |profile: Option<String>, found: &Diagnostics| {
        for diagnostic in found.iter() {
            if !list.iter().any(|(_, known)| known == diagnostic) {
                list.push((profile.clone(), diagnostic.clone()));
            }
        }
    };
    add(None, &under(profile));
    if profile.is_none() {
        for name in Policy::profile_names(&source) {
            add(Some(name.clone()), &under(Some(&name)));
        }
    }
    Findings { file, source, strict, list }
}

impl Findings {
    fn count(&self, severity: Severity) -> usize {
        self.list.iter().filter(|(_, diagnostic)| diagnostic.severity == severity).count()
    }

    fn is_valid(&self) -> bool {
        self.count(Severity::Error) == 0 && !(self.strict && self.count(Severity::Warning) > 0)
    }

    fn print(&self) {
        for (profile, diagnostic) in &self.list {
            say!("{}", paint::diagnostic(&self.file, &self.source, diagnostic));
            if let Some(profile) = profile {
                say!("  {} under the profile `{profile}`", paint::faint("note:"));
            }
            say!("");
        }
        let (errors, warnings) = (self.count(Severity::Error), self.count(Severity::Warning));
        let counted = format!(
            "{errors} {}, {warnings} {}",
            plural(errors, "error"),
            plural(warnings, "warning")
        );
        match (self.is_valid(), errors + warnings) {
            (true, 0) => say!("{}: {}", self.file, paint::good("valid")),
            (true, _) => say!("{}: {}, {counted}", self.file, paint::good("valid")),
            (false, _) => say!("{}: {}, {counted}", self.file, paint::bad("not valid")),
        }
    }

    fn json(&self) -> Value {
        let diagnostics: Vec<Value> = self
            .list
            .iter()
            .map(|(profile, found)| diagnostic_json(profile.as_deref(), found))
            .collect();
        json!({ "file": self.file, "valid": self.is_valid(), "diagnostics": diagnostics })
    }
}

pub(crate) fn plural(count: usize, word: &str) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

/// A diagnostic as scripts read it.
pub(crate) fn diagnostic_json(profile: Option<&str>, diagnostic: &Diagnostic) -> Value {
    json!({
        "severity": diagnostic.severity.word(),
        "line": diagnostic.at.line,
        "column": diagnostic.at.column,
        "message": diagnostic.message,
        "help": diagnostic.help,
        "profile": profile,
    })
}
