//! Runs this program under callgrind and reads what each path took.

use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::process::{Command, Stdio};

/// The argument with which this program runs all paths, to be counted.
pub(crate) const RUN: &str = "--run";

/// Features of the processor that the C library would choose its copying by: without them it is the
/// same code everywhere.
const PLAIN_LIBC: &str = "glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX_Fast_Unaligned_Load,-ERMS,-FSRM,-SSSE3,-SSE4_2";

/// Calls a path over and over. Callgrind counts from here, which it knows by the name.
#[inline(never)]
pub(crate) fn counted_begin(calls: u64, path: &mut dyn FnMut()) {
    for _ in 0..calls {
        path();
    }
    counted_end(calls);
}

/// Callgrind writes down what it has counted when this is called.
#[inline(never)]
fn counted_end(calls: u64) {
    black_box(calls);
}

/// What each part of a run took, in their order; `None` if there is no valgrind.
pub(crate) fn count(parts: usize) -> Result<Option<Vec<u64>>, Box<dyn Error>> {
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        return Ok(None);
    }
    let folder = std::env::temp_dir().join(format!("tidegate-instructions-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let counted = count_in(&folder, parts);
    std::fs::remove_dir_all(&folder)?;
    counted.map(Some)
}

fn count_in(folder: &Path, parts: usize) -> Result<Vec<u64>, Box<dyn Error>> {
    let out = folder.join("out");
    let ran = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg("--zero-before=*counted_begin*")
        .arg("--dump-before=*counted_end*")
        .arg(format!("--callgrind-out-file={}", out.display()))
        .arg(std::env::current_exe()?)
        .arg(RUN)
        .env("GLIBC_TUNABLES", PLAIN_LIBC)
        .output()?;
    if !ran.status.success() {
        return Err(format!("callgrind failed:\n{}", String::from_utf8_lossy(&ran.stderr)).into());
    }
    let mut totals = Vec::new();
    for part in 1..=parts {
        let text = std::fs::read_to_string(folder.join(format!("out.{part}")))?;
        totals.push(total(&text).ok_or_else(|| format!("callgrind said nothing of part {part}"))?);
    }
    Ok(totals)
}

/// What a part of callgrind's output adds up to.
fn total(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix("totals: "))?.trim().parse().ok()
}
