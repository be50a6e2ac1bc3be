//! Prints the table of docs/a-million-requests-a-second.md:
//!
//! ```text
//! cargo run --release -p tidegate-testkit --example million
//! ```

fn main() {
    print!("{}", tidegate_testkit::deployment::table());
}
