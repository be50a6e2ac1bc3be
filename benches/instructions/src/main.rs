//! Counts the instructions of the hot paths under callgrind and compares them with the record, so that
//! a regression is seen on a machine whose timings say nothing.
//!
//! `cargo run --profile counted -p tidegate-instructions` compares and ends with 1 if a path takes
//! more than the record allows; `-- --record` writes the record anew.

mod callgrind;
mod paths;
mod record;

use std::error::Error;
use std::path::Path;
use std::process::{Command, ExitCode};

use paths::PATHS;
use record::{Compared, Record};

/// Where the record stands in the repository.
const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../instructions.toml");

fn main() -> ExitCode {
    let asked = std::env::args().nth(1);
    let done = match asked.as_deref() {
        None => compare(),
        Some("--record") => renew(),
        // This program again, under callgrind.
        Some(callgrind::RUN) => {
            paths::run_all();
            Ok(true)
        }
        Some(other) => Err(format!("found `{other}`, expected nothing or --record").into()),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether no path takes more than the record allows.
fn compare() -> Result<bool, Box<dyn Error>> {
    let text = std::fs::read_to_string(Path::new(RECORD))?;
    let record = Record::parse(&text)?;
    if record.architecture != std::env::consts::ARCH {
        let (recorded, here) = (&record.architecture, std::env::consts::ARCH);
        println!("left out: the record is of {recorded}, this is {here}");
        return Ok(true);
    }
    let Some(counted) = count()? else { return Ok(true) };
    let Compared { table, worse, notes } = record.compare(&counted);
    println!("{table}");
    notes.iter().for_each(|note| println!("{note}"));
    if !worse.is_empty() {
        worse.iter().for_each(|one| println!("{one}"));
        println!("If that is meant, write the record anew and say why in the commit:");
        println!("  cargo run --profile counted -p tidegate-instructions -- --record");
    }
    if record.rustc != counted.rustc && !worse.is_empty() {
        println!(
            "Nothing fails: the record is of rustc {}, this is {}.",
            record.rustc, counted.rustc
        );
        return Ok(true);
    }
    Ok(worse.is_empty())
}

fn renew() -> Result<bool, Box<dyn Error>> {
    let Some(counted) = count()? else { return Ok(false) };
    std::fs::write(Path::new(RECORD), counted.to_text())?;
    print!("{}", counted.to_text());
    Ok(true)
}

/// What every path takes here; `None` without a callgrind.
fn count() -> Result<Option<Record>, Box<dyn Error>> {
    if cfg!(debug_assertions) {
        return Err("this is no optimised build: run it with `--profile counted`".into());
    }
    let Some(totals) = callgrind::count(PATHS.len())? else {
        println!("left out: there is no valgrind");
        return Ok(None);
    };
    let of_one = |(path, total): (&paths::Path, u64)| (path.name.to_owned(), total / paths::TIMES);
    let instructions = PATHS.iter().zip(totals).map(of_one).collect();
    let (architecture, rustc) = (std::env::consts::ARCH.to_owned(), rustc()?);
    Ok(Some(Record { architecture, rustc, instructions }))
}

/// The version of the compiler, such as 1.95.0.
fn rustc() -> Result<String, Box<dyn Error>> {
    let said = String::from_utf8(Command::new("rustc").arg("--version").output()?.stdout)?;
    Ok(said.split_whitespace().nth(1).ok_or("rustc does not say its version")?.to_owned())
}
