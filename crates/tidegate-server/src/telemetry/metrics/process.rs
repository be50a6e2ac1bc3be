//! The process itself, as `/proc` shows it; `None` where there is no `/proc`.

use std::fs;

/// How many of the kernel's ticks make a second, in every file that people can read: Linux has kept
/// this number fixed for programs whatever the kernel's own is.
const TICKS_PER_SECOND: u64 = 100;

/// User and system CPU time, in microseconds.
pub(super) fn cpu_us() -> Option<u64> {
    cpu_ticks(&fs::read_to_string("/proc/self/stat").ok()?)?
        .checked_mul(1_000_000 / TICKS_PER_SECOND)
}

/// User and system time. The process's name comes before them and may hold anything, but ends with
/// the last parenthesis.
fn cpu_ticks(stat: &str) -> Option<u64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    user.checked_add(system)
}

pub(super) fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

pub(super) fn open_files() -> Option<usize> {
    // One of them is the directory that is being read.
    fs::read_dir("/proc/self/fd").ok().map(|entries| entries.count().saturating_sub(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_shifts_no_field() {
        let stat = "7 (a ) b) S 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1 0 99";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("7 (a) S 1"), None);
    }
}
