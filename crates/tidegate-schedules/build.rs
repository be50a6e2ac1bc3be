//! Has `sync.rs` of the library take shuttle's atomics and locks.

fn main() {
    println!("cargo::rustc-cfg=shuttle");
    println!("cargo::rerun-if-changed=build.rs");
}
