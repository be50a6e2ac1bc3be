//! The memory of keys, and the latency of the slowest inserts. Each is measured in a process of its own,
//! which holds nothing else.

use std::process::{Command, Stdio};

use tidegate::Verdict;

use crate::keyed::Bucket;
use crate::population::write_key;
use crate::rounds::now;
use crate::table::Table;

/// The argument that makes the benchmark fill one table, with the side and the number of keys.
pub const FILL: &str = "--fill";

const MILLION: usize = 1_000_000;
/// Bytes a key, at most.
const BYTES_MOST: f64 = 48.0;

/// Each key owes something for six minutes, so that none makes room for others.
const SLOW: Bucket = Bucket { an_hour: 10, burst: 10 };

/// How often late inserts are measured; the median counts. One moment of other work on the machine makes
/// a hundred inserts late.
const FILLS: usize = 3;

/// The result of one fill.
struct FillResult {
    bytes_a_key: f64,
    late_us: f64,
    slowest_us: f64,
}

/// Measures memory and inserts.
pub fn measure(table: &mut Table) {
    for millions in [1, 10] {
        let (ours, governor) = (filled("tidegate", millions), filled("governor", millions));
        let what = format!("bytes a key, {millions}M keys");
        table.add_against(&what, "B", ours.bytes_a_key, Some(governor.bytes_a_key), BYTES_MOST);
        if millions == 10 {
            table.add("slowest of 10M inserts", "us", ours.slowest_us, governor.slowest_us, None);
        }
    }
    let mut fills: [[FillResult; 2]; FILLS] =
        std::array::from_fn(|_| ["tidegate", "nothing"].map(|whose| filled(whose, 10)));
    let ratio = |[ours, nothing]: &[FillResult; 2]| ours.late_us / nothing.late_us;
    fills.sort_by(|one, other| ratio(one).total_cmp(&ratio(other)));
    let [ours, nothing] = &fills[FILLS / 2];
    let what = "p99.999 of 10M inserts; peer: an empty loop";
    table.add(what, "us", ours.late_us, nothing.late_us, Some(10.0));
    let what = "slowest of 10M turns of an empty loop; peer: insert";
    table.add(what, "us", nothing.slowest_us, ours.slowest_us, None);
}

fn filled(whose: &str, millions: usize) -> FillResult {
    let program = std::env::current_exe().unwrap();
    let keys = (millions * MILLION).to_string();
    let output =
        Command::new(program).args([FILL, whose, &keys]).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "filling {whose} with {keys} keys failed");
    let text = String::from_utf8(output.stdout).unwrap();
    let numbers: Vec<f64> = text.split_whitespace().map(|one| one.parse().unwrap()).collect();
    let [bytes_a_key, late_us, slowest_us] = numbers[..] else { panic!("found {text}") };
    FillResult { bytes_a_key, late_us, slowest_us }
}

/// Fills a table and prints bytes a key, p99.999 and the slowest insert in microseconds.
pub fn fill(whose: &str, keys: usize) {
    match whose {
        "tidegate" => {
            let ours = SLOW.ours(keys * 2);
            fill_with(keys, |key| assert_eq!(ours.check(key), Verdict::Allowed));
            assert_eq!(ours.keys(), keys, "none was forgotten");
        }
        "governor" => {
            let governor = SLOW.governor();
            fill_with(keys, |key| assert!(governor.check_key(key).is_ok()));
        }
        _ => fill_with(keys, |key| _ = std::hint::black_box(key)),
    }
}

#[allow(clippy::cast_possible_truncation, reason = "no insert takes four seconds")]
fn fill_with(keys: usize, mut insert: impl FnMut(&String)) {
    let mut key = String::new();
    // Written to, so that it counts as memory before the fill.
    let mut took_ns = vec![1_u32; keys];
    let before = resident_bytes();
    for (number, took_ns) in (0..).zip(&mut took_ns) {
        write_key(number, &mut key);
        let started = now();
        insert(&key);
        *took_ns = started.elapsed().as_nanos() as u32;
    }
    let bytes = resident_bytes().saturating_sub(before);
    took_ns.sort_unstable();
    let late_ns = took_ns[keys - 1 - keys / 100_000];
    let us = |ns: u32| f64::from(ns) / 1e3;
    println!("{} {} {}", bytes as f64 / keys as f64, us(late_ns), us(took_ns[keys - 1]));
}

/// The resident memory of this process.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}
