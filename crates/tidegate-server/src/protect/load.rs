//! The load of this host, measured once a second, and the load that services report of themselves.
//!
//! The load is the largest of three numbers: the share of the processors' time that was used in the last
//! seconds; the share of time in which some task waited for memory (Linux's pressure, or the share of
//! memory in use where Linux does not tell); and the largest load that a service has reported of late.

use std::collections::VecDeque;
use std::fs::read_to_string;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use crate::app::App;
use crate::engine::Engine;

/// The full load, in millionths.
pub(crate) const WHOLE_PPM: u64 = 1_000_000;
const EVERY: Duration = Duration::from_secs(1);
/// The number of seconds over which processor time is measured: a single second says little.
const SECONDS: usize = 5;
/// For how long a reported load counts at least. It counts for twice as long at most.
const REPORTED_US: u64 = 5_000_000;

/// The load of this host and of the services that report theirs.
#[derive(Debug, Default)]
pub(crate) struct Load {
    own_ppm: AtomicU64,
    reported: ReportedLoad,
}

impl Load {
    /// The load that this node tells the others.
    pub(crate) fn own_ppm(&self) -> u64 {
        self.own_ppm.load(Ordering::Relaxed)
    }

    /// A service reports its load.
    pub(crate) fn report(&self, ppm: u64, now_us: u64) {
        self.reported.record(ppm.min(WHOLE_PPM), now_us);
    }

    fn set_host(&self, host_ppm: u64, now_us: u64) -> u64 {
        let own_ppm = host_ppm.max(self.reported.largest(now_us));
        self.own_ppm.store(own_ppm, Ordering::Relaxed);
        own_ppm
    }
}

/// Measures the load for as long as the daemon runs. Where nodes share a store, replication tells the
/// engine the largest load of all nodes; elsewhere this function tells the engine the load of this node.
pub(crate) async fn follow(app: Arc<App>) {
    let mut cpu_times = CpuTimes::default();
    let mut second = interval(EVERY);
    second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        second.tick().await;
        let cpu_ppm = read_to_string("/proc/stat").ok().and_then(|text| cpu_times.sample(&text));
        let host_ppm = cpu_ppm.unwrap_or_default().max(memory_ppm());
        let own_ppm = app.load.set_host(host_ppm, app.now().steady_us);
        if is_alone(&app.engine) {
            app.engine.set_load(own_ppm);
        }
    }
}

/// True if no other node tells this one its load.
fn is_alone(engine: &Engine) -> bool {
    engine.store().shared().is_none_or(|store| store.is_lost() || store.lacks_secret())
}

/// The largest load that was reported in this span of time and the one before.
#[derive(Debug, Default)]
struct ReportedLoad {
    /// The number of a span with its largest load in the low 20 bits, for even and for odd spans.
    spans: [AtomicU64; 2],
}

const LOAD_BITS: u32 = 20;

impl ReportedLoad {
    fn record(&self, ppm: u64, now_us: u64) {
        let span = now_us / REPORTED_US + 1;
        // The larger of two packed numbers has the later span, or in the same span the larger load.
        self.slot(span).fetch_max(span << LOAD_BITS | ppm, Ordering::Relaxed);
    }

    fn largest(&self, now_us: u64) -> u64 {
        let span = now_us / REPORTED_US + 1;
        let of = |span: u64| {
            let packed = self.slot(span).load(Ordering::Relaxed);
            if packed >> LOAD_BITS == span { packed & ((1 << LOAD_BITS) - 1) } else { 0 }
        };
        of(span).max(of(span - 1))
    }

    fn slot(&self, span: u64) -> &AtomicU64 {
        &self.spans[usize::from(span % 2 == 1)]
    }
}

/// The processors' time, second by second.
#[derive(Debug, Default)]
struct CpuTimes {
    /// Busy ticks and all ticks.
    samples: VecDeque<(u64, u64)>,
}

impl CpuTimes {
    /// Takes a sample; returns the share of time that was used since the oldest sample.
    fn sample(&mut self, stat: &str) -> Option<u64> {
        let (busy, all) = ticks(stat)?;
        let since = self.samples.front().copied();
        self.samples.push_back((busy, all));
        if self.samples.len() > SECONDS {
            self.samples.pop_front();
        }
        let (busy_then, all_then) = since?;
        let (busy, all) = (busy.saturating_sub(busy_then), all.saturating_sub(all_then));
        (busy * WHOLE_PPM).checked_div(all).map(|ppm| ppm.min(WHOLE_PPM))
    }
}

/// Busy ticks and all ticks of all processors, from `/proc/stat`, where guests are counted as users.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line.split_whitespace().take(8).map_while(|n| n.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle = ticks.get(3)? + ticks.get(4).copied().unwrap_or_default();
    Some((all.checked_sub(idle)?, all))
}

fn memory_ppm() -> u64 {
    let pressure = read_to_string("/proc/pressure/memory").ok();
    let pressure = pressure.and_then(|text| pressure_ppm(&text));
    let used = || read_to_string("/proc/meminfo").ok().and_then(|text| used_ppm(&text));
    pressure.or_else(used).unwrap_or_default()
}

/// The share of the last ten seconds in which some task waited for memory.
fn pressure_ppm(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let percent = line.split_whitespace().find_map(|field| field.strip_prefix("avg10="))?;
    let (whole, hundredths) = percent.split_once('.')?;
    let hundredths = whole.parse::<u64>().ok()? * 100 + hundredths.parse::<u64>().ok()?;
    Some((hundredths * 100).min(WHOLE_PPM))
}

/// The share of memory that is not available.
fn used_ppm(meminfo: &str) -> Option<u64> {
    let field = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let (all, available) = (field("MemTotal:")?, field("MemAvailable:")?);
    (all.saturating_sub(available) * WHOLE_PPM).checked_div(all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::tests::TestRedis;

    #[tokio::test]
    async fn a_node_that_has_lost_the_store_goes_by_its_own_load() {
        let redis = TestRedis::start();
        let app = redis.node().await;
        assert!(!is_alone(&app.engine), "others tell of theirs");
        redis.stop(&[&app]).await;
        assert!(is_alone(&app.engine));
        let policy = tidegate::Policy::parse("a.yaml", "{ tidegate: 1, name: a }").unwrap();
        assert!(is_alone(&App::new(policy).engine));
    }

    #[test]
    fn the_processors_load_is_the_share_used_since_the_oldest_sample() {
        let mut cpu_times = CpuTimes::default();
        let mut sample = |busy: u64, idle: u64| {
            cpu_times.sample(&format!("cpu  {busy} 0 0 {idle} 0 0 0 0 99 99\ncpu0 1 2 3 4\n"))
        };
        assert_eq!(sample(1_000, 9_000), None, "one sample says nothing");
        assert_eq!(sample(1_025, 9_075), Some(250_000));
        for second in 2..=5 {
            sample(1_000 + 100 * second, 9_000);
        }
        assert_eq!(sample(2_025, 9_075), Some(1_000_000), "the first seconds are forgotten");
    }

    #[test]
    fn waiting_for_memory_is_load_and_what_is_in_use_where_that_is_not_told() {
        let pressure = "some avg10=12.34 avg60=0.00 avg300=0.00 total=0\nfull avg10=1.00 …";
        assert_eq!(pressure_ppm(pressure), Some(123_400));
        assert_eq!(pressure_ppm("full avg10=1.00"), None);
        let meminfo = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  250 kB\n";
        assert_eq!(used_ppm(meminfo), Some(750_000));
    }

    #[test]
    fn a_reported_load_counts_for_a_while_and_the_largest_does() {
        let load = Load::default();
        load.report(900_000, 1_000_000);
        load.report(300_000, 2_000_000);
        assert_eq!(load.set_host(100_000, 3_000_000), 900_000);
        load.report(400_000, 12_000_000);
        assert_eq!(load.set_host(100_000, 13_000_000), 400_000);
        assert_eq!(load.set_host(500_000, 13_000_000), 500_000);
        assert_eq!(load.set_host(100_000, 99_000_000), 100_000);
        load.report(7_000_000, 99_000_000);
        assert_eq!(load.set_host(0, 99_000_000), WHOLE_PPM);
    }
}
