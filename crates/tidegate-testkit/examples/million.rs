//! Prints the table of docs/a-million-requests-a-second.md:
//!
//! ```text
//! cargo run --release -p tidegate-testkit --example million
//! ```

use tidegate_testkit::deployment::{compared, table};

fn main() {
    print!("{}", table(&compared()));
}
