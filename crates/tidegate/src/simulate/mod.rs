//! Policy tests: days of requests against a policy, under a simulated clock, in milliseconds.
//!
//! A [`TestFile`] is read from text, with every problem named by line and column; [`TestFile::run`]
//! runs it against a policy's text. Each test starts empty.

mod expect;
mod file;
mod operator_steps;
mod request;
mod run;
mod step;
mod switchable_store;
mod template;

pub use expect::Mismatch;
pub use file::TestFile;
pub use run::{Failure, FileReport, TestReport};
