//! The library in many schedules: each test runs again and again, every time with another choice of who runs
//! next, at every step that threads can see of each other. Which orders a processor may see them in is left
//! to the library's own tests of interleavings, by loom.

#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]

mod bans;
mod keyed;
mod limiter;

use std::sync::Arc;

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, Runner};

/// How many switches away from a thread that could go on decide, where few do.
const SWITCHES: usize = 4;

/// So many times as many, for whoever has the time.
const MORE: &str = "TIDEGATE_SCHEDULES";

/// Runs a test in so many schedules that are drawn evenly, and as many in which few switches decide.
fn each_schedule(times: usize, test: impl Fn() + Send + Sync + 'static) {
    let more = std::env::var(MORE).map_or(1, |more| more.parse().unwrap());
    let times = times * more;
    let test = Arc::new(test);
    run(RandomScheduler::new(times), &test);
    run(PctScheduler::new(SWITCHES, times), &test);
}

fn run(scheduler: impl Scheduler + 'static, test: &Arc<impl Fn() + Send + Sync + 'static>) {
    let mut config = Config::new();
    (config.stack_size, config.silence_warnings) = (1 << 22, true);
    let test = Arc::clone(test);
    Runner::new(scheduler, config).run(move || test());
}

/// What several threads return that run at once.
fn at_once<T: Send + 'static>(threads: usize, act: impl Fn(usize) -> T + Sync) -> Vec<T> {
    shuttle::thread::scope(|scope| {
        let act = &act;
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || act(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
