//! The process itself, as `/proc` shows it; where there is none, nothing is said.

use std::fs;

use super::text::{Kind, Millionths, Page};

/// How many of the kernel's ticks make a second, in every file that people can read: Linux has kept
/// this number fixed for programs whatever the kernel's own is.
const TICKS_PER_SECOND: u64 = 100;

/// Writes what the process uses.
pub(super) fn write(page: &mut Page) {
    if let Some(us) = cpu_us() {
        let help = "User and system CPU time spent, in seconds.";
        page.single("process_cpu_seconds_total", Kind::Counter, help, Millionths(us));
    }
    if let Some(bytes) = resident_bytes() {
        let help = "Resident memory size in bytes.";
        page.single("process_resident_memory_bytes", Kind::Gauge, help, bytes);
    }
    if let Ok(entries) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory that is being read.
        let open = entries.count().saturating_sub(1);
        page.single("process_open_fds", Kind::Gauge, "Open file descriptors.", open);
    }
}

fn cpu_us() -> Option<u64> {
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

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
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
