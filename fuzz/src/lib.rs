//! Fuzzing on the stable toolchain: one target per parser, each a test in `tests/`.
//!
//! A target turns bytes into an input ([`Choices`]), often by breaking a good document of its
//! corpus ([`mutate`]), and asserts what must hold of any input at all. The corpus is every file
//! under `corpus/<target>/`, readable as it stands; it is checked unchanged before anything random.
//!
//! `cargo test -p tidegate-fuzz` is a short run, bounded by a number of inputs, for every change.
//! A long one takes what ends first, inputs or milliseconds:
//!
//! ```text
//! BOLERO_RANDOM_ITERATIONS=1000000000 BOLERO_RANDOM_TEST_TIME_MS=600000 \
//!     cargo test --release -p tidegate-fuzz --test policies
//! ```
//!
//! A failure prints the input, made as small as a second allows, and `BOLERO_RANDOM_SEED=…`; with
//! that set, the same input is tried first. The targets are bolero's, so that `cargo-bolero` and a
//! nightly toolchain can also run them guided by coverage. An input that broke something becomes a test beside the code that it broke, and a file
//! of the corpus if it is a document worth breaking further.

use bolero::{ValueGenerator, produce};

mod choices;
mod corpus;
mod mutation;

pub use choices::Choices;
pub use corpus::corpus;
pub use mutation::mutate;

/// Up to `max` bytes; more bytes make more choices.
#[must_use]
pub fn bytes(max: usize) -> impl ValueGenerator<Output = Vec<u8>> {
    produce::<Vec<u8>>().with().len(0..=max)
}

/// Whether a text can be shown on a terminal or in a log without harm: no control characters.
#[must_use]
pub fn is_harmless(text: &str) -> bool {
    !text.chars().any(char::is_control)
}
