//! A witness on each processor, which tells during a load when the processor stood still.
//!
//! It sleeps for a moment, again and again, and notes when it was woken late. As it has the priority
//! of real time, no other program keeps it from running; what it waited all the same while others
//! were in the kernel is taken off. What is left is an interrupt of the timer that came late: the host
//! of a virtual machine gave the processor to somebody else, or something held interrupts off. Neither
//! is of the load or of what it measures; to show that, a watch without a load stands beside it.
//!
//! What other programs took of the processors is told too, but not when: they come in between as
//! ordinary programs do, unless the benchmark goes first (`roles::go_first`).
//!
//! Each is a process of its own, this program once more, since `chrt` and `taskset` set the priority
//! and the processor of a whole process. A wake costs some 20 µs in a virtual machine, so that they
//! are a millisecond apart: what is shorter is seen by chance only.

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

use crate::lives::{Latencies, Life, Stall, now_us, untouched};
use crate::load::Server;

/// What the program is called with to be a witness.
pub(crate) const ROLE: &str = "witness";

const SLEEP_US: u64 = 1_000;
/// What is later than this is a stall. Waking takes some 50 µs of it by itself.
const LATE_US: u64 = 200;
/// How often it looks what it has waited for others. Between, that is some microseconds a wake.
const LOOK_EVERY: usize = 16;
const IDLE: Duration = Duration::from_secs(3);

/// Witnesses that watch.
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

    /// What the machine does without a load, to compare with; nothing where that cannot be told.
    #[must_use]
    pub fn idle() -> Option<Machine> {
        let witness = Self::start()?;
        thread::sleep(IDLE);
        Some(witness.end())
    }

    /// Ends them, and tells what they saw.
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
    /// What the system says the host took, for each processor.
    stolen_ms: Vec<u64>,
    /// For how long programs ran that are not of this benchmark.
    others_ms: u64,
}

impl Machine {
    /// How long those took that no stall touched.
    #[must_use]
    pub fn spared(&self, lives: &[Life]) -> Spared {
        let untouched = untouched(lives, &self.stalls);
        let left_out = (lives.len() - untouched.len()) as f64 / lives.len().max(1) as f64;
        Spared { latencies: Latencies::of(untouched), left_out }
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

/// Those that no stall touched.
#[derive(Clone, Copy, Debug)]
pub struct Spared {
    /// How long they took; nothing if there are none.
    pub latencies: Option<Latencies>,
    /// The share of all that were touched.
    pub left_out: f64,
}

impl fmt::Display for Spared {
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
        // It says so when it begins; nothing comes if it may not.
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

/// Is a witness until the input ends, then tells of each stall since when and for how long.
pub(crate) fn watch() {
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    thread::spawn(move || {
        // Nothing is ever said: it ends with whoever started this.
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

/// For how long this thread could have run but others did.
fn waited_for_others_us(schedstat: &File) -> u64 {
    let mut text = [0; 128];
    let length = schedstat.read_at(&mut text, 0).unwrap();
    let text = std::str::from_utf8(&text[..length]).unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1_000
}

/// Processor time since the machine started, as the system counts it in hundredths of a second.
#[derive(Debug)]
struct Ticks {
    /// What the host took from each processor.
    stolen_ms: Vec<u64>,
    /// What all programs took.
    all_ms: u64,
    /// What this one and those that it started took.
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
