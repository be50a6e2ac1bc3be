//! `tidegate export`

use std::path::PathBuf;

use clap::{Args, Subcommand};

use tidegate::Policy;
use tidegate::engine::policy::Options;
use tidegate_server::files;

use super::Error;
use crate::say;

/// Print documents made from the policy language.
#[derive(Args)]
#[command(
    after_help = "Example:\n  tidegate export schema > tidegate.schema.json\n\nIn an editor with YAML support, put this at the head of a policy:\n  # yaml-language-server: $schema=tidegate.schema.json"
)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    document: Document,
}

#[derive(Subcommand)]
enum Document {
    /// The JSON Schema of policies, for editors that complete and check; the same for every policy
    #[command(after_help = "Example:\n  tidegate export schema > tidegate.schema.json")]
    Schema {
        /// A policy that must be valid, or nothing is printed
        policy: Option<PathBuf>,
    },
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Error> {
    let Document::Schema { policy } = &arguments.document;
    if let Some(path) = policy {
        let options = Options { env: files::environment(), ..Options::default() };
        Policy::check(&path.display().to_string(), &files::read(path)?, &options)?;
    }
    say!("{}", tidegate::engine::policy::json_schema().trim_end());
    Ok(true)
}
