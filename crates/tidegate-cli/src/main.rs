//! The `tidegate` binary: one command per file under `command`.

mod command;
mod paint;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mimalloc::MiMalloc;

/// Gives memory back to the system after a flood. That of glibc keeps most of it.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// Rate limiting for APIs, driven by one readable policy.
#[derive(Parser)]
#[command(
    name = "tidegate",
    version,
    about = "Rate limiting for APIs, driven by one readable policy",
    max_term_width = 100,
    arg_required_else_help = true,
    after_help = "Examples:\n  tidegate serve\n  tidegate validate policy.yaml\n  tidegate test policy.test.yaml\n  tidegate explain policy.yaml --method POST --path /auth/login --ip 192.0.2.1\n\nEvery command ends with 0 if all is well, with 1 if not, and with 2 if it was not understood."
)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

// Each command describes itself, where its arguments are.
#[derive(Subcommand)]
enum Command {
    Serve(Box<command::serve::Arguments>),
    Validate(command::validate::Arguments),
    Test(command::test::Arguments),
    Explain(Box<command::explain::Arguments>),
    Export(command::export::Arguments),
    Health(command::health::Arguments),
    Admin(Box<command::admin::Arguments>),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Serve(arguments) => command::serve::run(*arguments),
        Command::Validate(arguments) => command::validate::run(&arguments),
        Command::Test(arguments) => command::test::run(&arguments),
        Command::Explain(arguments) => command::explain::run(&arguments),
        Command::Export(arguments) => command::export::run(&arguments),
        Command::Health(arguments) => command::health::run(&arguments),
        Command::Admin(arguments) => command::admin::run(&arguments),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            anstream::eprintln!("{}: {error}", paint::bad("error"));
            ExitCode::FAILURE
        }
    }
}
