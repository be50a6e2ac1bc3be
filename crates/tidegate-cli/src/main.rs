//! The `tidegate` command: checks, tests and explains policies.

fn main() {}
