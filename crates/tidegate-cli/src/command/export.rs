//! `tidegate export`

use clap::{Args, Subcommand};

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
    /// The JSON Schema of policies, for editors that complete and check
    Schema,
}

pub(crate) fn run(arguments: &Arguments) -> Result<bool, Error> {
    match arguments.document {
        Document::Schema => say!("{}", tidegate::policy::json_schema().trim_end()),
    }
    Ok(true)
}
