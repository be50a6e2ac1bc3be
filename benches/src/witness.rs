//! A witness on each processor, which reports when the processor stood still during a load.
//!
//! A witness sleeps for a moment, again and again, and notes when it was woken late. It has real-time
//! priority, so no other program keeps it from running; its waits for others in the kernel are
//! subtracted. The rest is a late timer interrupt: the host of a virtual machine gave the processor to
//! another machine, or something held interrupts off. Neither comes from the load or from the measured
//! program; a watch without a load shows that.
//!
//! The processor time of other programs is reported too, but not when they ran: they run in between as
//! ordinary programs do, unless the benchmark goes first (`roles::go_first`).
//!
//! Each witness is a process of its own, because `chrt` and `taskset` set the priority and the processor
//! of a whole process. A wake costs some 20 µs in a virtual machine, so wakes are a millisecond apart:
//! a shorter stall is seen by chance only.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::cast_precision_loss,
    clippy::print_stdout,
    reason = "a benchmark may stop at the first surprise, and its figures are for people"
)]

use std::fmt;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::load::Server;
use crate::request_spans::{Latencies, RequestSpan, Stall, now_us, untouched};

/// The argument that makes this program a witness.
pub(crate) const ROLE: &str = "witness";

const SLEEP_US: u64 = 1_000;
/// A longer delay is a stall. Waking by itself takes some 50 µs of it.
const LATE_US: u64 = 200;
/// How often a witness reads its waits for others. Between, that is some microseconds a wake.
const LOOK_EVERY: usize = 16;
const IDLE: Duration = Duration::from_secs(3);

/// The running witnesses.
#[derive(Debug)]
pub struct Witness {
    watchers: Vec<Watcher>,
    before: Ticks,
}

impl Witness {
    /// Starts one on each processor; none where real-time priority is not permitted.
    #[must_use]
    pub fn start() -> Option<Self> {
        let processors = Ticks::now().stolen_ms.len();
        let watchers = (0..processors).map(Watcher::start).collect::<Option<_>>()?;
        Some(Self { watchers, before: Ticks::now() })
    }

    /// The stalls of the machine without a load, to compare with; `None` where witnesses cannot run.
    #[must_use]
    pub fn idle() -> Option<Machine> {
        let witness = Self::start()?;
        thread::sleep(IDLE);
        Some(witness.end())
    }

    /// Ends the witnesses, and returns their stalls.
    #[must_use]
    pub fn end(self) -> Machine {
        let Ticks { stolen_ms, all_ms, ours_ms } = Ticks::now();
        let stolen = stolen_ms.into_iter().zip(self.before.stolen_ms);
        Machine {
            stolen_ms: stolen.map(|(after, before)| after - before).collect(),
            others_ms: (all_ms - self.before.all_ms)
                .saturating_sub(ours_ms.saturating_sub(self.before.ours_ms)),
            stalls: self.watchers.into_iter().flat_map(Watcher::end).collect(),
        }
    }
}

/// When the machine stood still during a load.
#[derive(Clone, Debug)]
pub struct Machine {
    stalls: Vec<Stall>,
    /// The time that the host took, by the system's count, for each processor.
    stolen_ms: Vec<u64>,
    /// The processor time of programs outside this benchmark.
    others_ms: u64,
}

impl Machine {
    /// The latencies of the requests that no stall touched.
    #[must_use]
    pub fn spared(&self, lives: &[RequestSpan]) -> UntouchedLatencies {
        let untouched = untouched(lives, &self.stalls);
        let left_out = (lives.len() - untouched.len()) as f64 / lives.len().max(1) as f64;
        UntouchedLatencies { latencies: Latencies::of(untouched), left_out }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stood still:")?;
        for (processor, stolen_ms) in self.stolen_ms.iter().enumerate() {
            let all = self.stalls.iter().filter(|stall| stall.processor == processor);
            let lasted: Vec<u64> = all.map(|stall| stall.lasts_us).collect();
            let sum_ms = lasted.iter().sum::<u64>() as f64 / 1e3;
            let longest_ms = *lasted.iter().max().unwrap_or(&0) as f64 / 1e3;
            let (comma, count) = (if processor == 0 { "" } else { "," }, lasted.len());
            write!(
                f,
                "{comma} cpu{processor} {count} x: {sum_ms:.1} ms, at most {longest_ms:.1} \
                 (steal {stolen_ms})"
            )?;
        }
        write!(f, "; others ran {} ms", self.others_ms)
    }
}

/// The requests that no stall touched.
#[derive(Clone, Copy, Debug)]
pub struct UntouchedLatencies {
    /// Their latencies; `None` without requests.
    pub latencies: Option<Latencies>,
    /// The share of all that were touched.
    pub left_out: f64,
}

impl fmt::Display for UntouchedLatencies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left_out = 100.0 * self.left_out;
        match self.latencies {
            Some(Latencies { p99_us, .. }) => {
                write!(f, "p99 {p99_us:>6} µs without the {left_out:.1} % that were touched")
            }
            None => write!(f, "all were touched"),
        }
    }
}

#[derive(Debug)]
struct Watcher {
    processor: usize,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    server: Server,
}

impl Watcher {
    fn start(processor: usize) -> Option<Self> {
        let mut command = Command::new("chrt");
        command.args(["--fifo", "90", "taskset", "--cpu-list", &processor.to_string()]);
        command.arg(std::env::current_exe().unwrap()).arg(ROLE);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child: Child = command.spawn().ok()?;
        let (stdin, stdout) = (child.stdin.take()?, BufReader::new(child.stdout.take()?));
        let mut watcher = Self { processor, stdin, stdout, server: Server(child) };
        // A witness prints a line when it begins, and none if it has no permission.
        let mut line = String::new();
        watcher.stdout.read_line(&mut line).unwrap();
        (!line.is_empty()).then_some(watcher)
    }

    fn end(self) -> Vec<Stall> {
        let Self { processor, stdin, stdout, server } = self;
        drop(stdin);
        let stall = |line: String| {
            let (begins, lasts) = line.split_once(' ').unwrap();
            let (begins_us, lasts_us) = (begins.parse().unwrap(), lasts.parse().unwrap());
            Stall { processor, begins_us, lasts_us }
        };
        let stalls = stdout.lines().map(|line| stall(line.unwrap())).collect();
        drop(server);
        stalls
    }
}

/// Watches until the input ends, then prints the beginning and the length of each stall.
pub(crate) fn watch() {
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    thread::spawn(move || {
        // The input stays empty and ends with the process that started this one.
        let _ = std::io::stdin().read(&mut [0]);
        ended.store(true, Ordering::Relaxed);
    });
    let mut stalls = Vec::with_capacity(10_000);
    let schedstat = File::open("/proc/thread-self/schedstat").unwrap();
    let mut waited_us = 0;
    println!("watching");
    for turn in 0_usize.. {
        if over.load(Ordering::Relaxed) {
            break;
        }
        if turn.is_multiple_of(LOOK_EVERY) {
            waited_us = waited_for_others_us(&schedstat);
        }
        let wakes_us = now_us() + SLEEP_US;
        thread::sleep(Duration::from_micros(SLEEP_US));
        let late_us = now_us().saturating_sub(wakes_us);
        if late_us > LATE_US {
            let waited_before_us = waited_us;
            waited_us = waited_for_others_us(&schedstat);
            let lasts_us = late_us.saturating_sub(waited_us - waited_before_us);
            if lasts_us > LATE_US {
                stalls.push((wakes_us, lasts_us));
            }
        }
    }
    for (begins_us, lasts_us) in stalls {
        println!("{begins_us} {lasts_us}");
    }
}

/// How long this thread was runnable while others ran.
fn waited_for_others_us(schedstat: &File) -> u64 {
    let mut text = [0; 128];
    let length = schedstat.read_at(&mut text, 0).unwrap();
    let text = std::str::from_utf8(&text[..length]).unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_000
}

/// Processor time since the machine started, as the system counts it in hundredths of a second.
#[derive(Debug)]
struct Ticks {
    /// The time that the host took from each processor.
    stolen_ms: Vec<u64>,
    /// The time of all programs.
    all_ms: u64,
    /// The time of this program and its children.
    ours_ms: u64,
}

impl Ticks {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap();
        let fields = |line: &str| -> Vec<u64> {
            let fields = line.split_whitespace().skip(1);
            fields.map_while(|field| Some(field.parse::<u64>().ok()? * 10)).collect()
        };
        let mut lines = stat.lines().take_while(|line| line.starts_with("cpu")).map(fields);
        // Of all processors together: in programs, in those that are nice, and in the kernel.
        let all_ms = lines.next().unwrap()[..3].iter().sum();
        Self { stolen_ms: lines.map(|fields| fields[7]).collect(), all_ms, ours_ms: ours_ms() }
    }
}

/// The processor time of this process and its children.
fn ours_ms() -> u64 {
    let own = std::process::id().to_string();
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let of_one = |process: std::fs::DirEntry| {
        let is_own = process.file_name().to_str() == Some(own.as_str());
        // It may have ended.
        let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        (is_own || fields[1] == own).then_some(ticks * 10)
    };
    processes.filter_map(of_one).sum()
}
