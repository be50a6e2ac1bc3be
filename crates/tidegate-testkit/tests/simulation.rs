//! Simulated deployments keep every promise, whatever the weather.
//!
//! `TIDEGATE_SEED=N cargo test -p tidegate-testkit --test simulation` runs one seed again.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may stop at a surprise")]

use std::sync::Arc;

use tidegate::Policy;
use tidegate_testkit::checkers::trouble::{Trouble, check_bound};
use tidegate_testkit::simulation::{Run, Setting, Weather, seeds, simulate};

const RUNS: u64 = 200;
const LEASED_RUNS: u64 = 60;

fn policy(spec: &str) -> Arc<Policy> {
    let text = format!("tidegate: 1\nname: many\nlimits:\n  a: {{ by: user, {spec} }}");
    Arc::new(Policy::parse("many.yaml", &text).unwrap())
}

/// Runs many seeds, each with a weather of its own.
fn judge_all(spec: &str) {
    let policy = policy(spec);
    for seed in seeds(RUNS).unwrap() {
        let setting = Setting::drawn(&policy, seed);
        let run = simulate(&setting, seed).unwrap();
        if let Err(broken) = run.judge() {
            let Setting { nodes, weather, .. } = setting;
            panic!("TIDEGATE_SEED={seed}, {spec}: {broken}\n{nodes} nodes, {weather:#?}");
        }
    }
}

#[test]
fn buckets_keep_their_promises() {
    judge_all("token_bucket: 8/s burst 8");
    judge_all("token_bucket: 30/s burst 5");
}

#[test]
fn buckets_whose_share_is_below_one_keep_their_promises() {
    judge_all("token_bucket: 2/s burst 3");
}

#[test]
fn sliding_windows_keep_their_promises() {
    judge_all("sliding_window: 10/s");
    judge_all("sliding_window: 3/400ms");
}

#[test]
fn sliding_counters_keep_their_promises() {
    judge_all("sliding_counter: 10/s");
}

#[test]
fn fixed_windows_keep_their_promises() {
    judge_all("fixed_window: 10/s");
}

#[test]
fn quotas_keep_their_promises() {
    judge_all("quota: 12/day");
}

#[test]
fn totals_keep_their_promises() {
    judge_all("total: 20");
}

/// The same for leased limits, in runs that are long enough for loans to run out.
fn leased_runs(spec: &str, change: impl Fn(&mut Setting)) -> Vec<(u64, Run)> {
    let policy = policy(&format!("{spec}, consistency: leased"));
    let run = |seed| {
        let mut setting = Setting::leased(&policy, seed);
        change(&mut setting);
        (seed, simulate(&setting, seed).unwrap())
    };
    seeds(LEASED_RUNS).unwrap().map(run).collect()
}

#[test]
fn leased_buckets_keep_their_promises() {
    for spec in [
        "token_bucket: 100/s burst 100",
        "token_bucket: 300/s burst 60",
        "token_bucket: 20/s burst 400",
        "token_bucket: 30/s burst 10",
    ] {
        for (seed, run) in leased_runs(spec, |_| {}) {
            if let Err(broken) = run.judge() {
                panic!("TIDEGATE_SEED={seed}, {spec}: {broken}");
            }
        }
    }
}

/// A simulation in which nothing is borrowed would promise nothing.
#[test]
fn leases_are_granted_spent_returned_and_run_out() {
    let runs = leased_runs("token_bucket: 100/s burst 100", |_| {});
    let sum = |count: fn(&Run) -> u64| runs.iter().map(|(_, run)| count(run)).sum::<u64>();
    for (what, count) in [
        ("spent", sum(|run| run.borrowed.spent)),
        ("exact", sum(|run| run.borrowed.exact)),
        ("granted", sum(|run| run.borrowed.granted)),
        ("refused", sum(|run| run.borrowed.refused)),
        ("returned", sum(|run| run.borrowed.returned / 1_000_000)),
        ("expired", sum(|run| run.borrowed.expired / 1_000_000)),
    ] {
        assert!(count >= 100, "{what}: {count}");
    }
}

/// A report that runs twice would free tokens that are still lent.
#[test]
fn a_store_that_takes_a_report_twice_is_caught() {
    let doubled = |setting: &mut Setting| {
        setting.weather = Weather { doubled_per_mille: 500, doubles_loans: true, ..fair() };
    };
    let runs = leased_runs("token_bucket: 100/s burst 100", doubled);
    let caught = runs.iter().filter_map(|(_, run)| run.judge().err());
    assert!(caught.into_iter().any(|broken| broken.promise.starts_with("level and loans")));
}

#[test]
fn leases_need_no_store_for_most_requests_in_fair_weather() {
    let runs = leased_runs("token_bucket: 1000/s burst 1000", |setting| {
        (setting.nodes, setting.believed_nodes, setting.weather) = (2, 2, fair());
        (setting.gap_us_max, setting.lulls_per_mille) = (4_000, 0);
    });
    let spent: u64 = runs.iter().map(|(_, run)| run.borrowed.spent).sum();
    let exact: u64 = runs.iter().map(|(_, run)| run.borrowed.exact).sum();
    assert!(spent > 20 * exact, "{spent} were spent here, {exact} were asked for");
}

const BUCKET: &str = "token_bucket: 8/s burst 8";

/// Many runs in one weather, on four nodes.
fn runs_in(spec: &str, weather: &Weather, change: impl Fn(&mut Setting)) -> Vec<Run> {
    let policy = policy(spec);
    let run = |seed| {
        let mut setting = Setting::drawn(&policy, seed);
        (setting.nodes, setting.believed_nodes) = (4, 4);
        setting.weather = weather.clone();
        change(&mut setting);
        simulate(&setting, seed).unwrap()
    };
    (1..=40).map(run).collect()
}

fn fair() -> Weather {
    Weather { delay_us_max: 1_000, ..Weather::default() }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let policy = policy(BUCKET);
    let run = |seed| {
        let run = simulate(&Setting::drawn(&policy, seed), seed).unwrap();
        (run.log.records(), run.charged, run.stretches, run.trouble)
    };
    for seed in 1..=20 {
        assert_eq!(run(seed), run(seed));
    }
    assert_ne!(run(1), run(2));
}

/// A simulation in which nothing happens would promise nothing.
#[test]
fn the_weather_brings_everything() {
    let policy = policy(BUCKET);
    let runs = (1..=RUNS).map(|seed| simulate(&Setting::drawn(&policy, seed), seed).unwrap());
    let (mut admitted, mut denied, mut degraded, mut judged) = (0, 0, 0, 0);
    let (mut cut, mut calm, mut failed_over, mut set_back, mut unheard) = (0, 0, 0, 0, 0);
    for run in runs {
        let log = run.log.records();
        admitted += log.iter().filter(|recorded| recorded.admitted).count();
        denied += log.iter().filter(|recorded| !recorded.admitted).count();
        degraded += run.log.degraded();
        let (lost, wrong) = (run.trouble.failovers > 0, run.trouble.set_back_us > 0);
        failed_over += usize::from(lost);
        set_back += usize::from(wrong);
        judged += usize::from(!lost && !wrong);
        cut += usize::from(run.stretches.len() > 1);
        calm += usize::from(run.log.degraded() == 0);
        let heard = log.iter().filter(|recorded| recorded.admitted && !recorded.degraded).count();
        unheard += run.charged.len() - heard;
    }
    for (what, count) in [
        ("runs with cuts", cut),
        ("runs without the need to decide alone", calm),
        ("runs with failovers", failed_over),
        ("runs with clocks set back", set_back),
        ("runs whose liveness is judged", judged),
    ] {
        assert!(count >= 20, "{what}: {count}");
    }
    for (what, count) in [
        ("admitted", admitted),
        ("denied", denied),
        ("degraded", degraded),
        ("charged, and nobody heard", unheard),
    ] {
        assert!(count >= 1_000, "{what}: {count}");
    }
}

/// Without the shares the nodes together would admit more.
#[test]
fn nodes_that_believe_to_be_alone_are_caught() {
    // Long enough for the nodes' knowledge of the store to expire.
    let weather = Weather { cuts: 12, ..fair() };
    for spec in [BUCKET, "sliding_window: 10/s", "fixed_window: 10/s"] {
        let long = |setting: &mut Setting| (setting.requests, setting.users) = (600, 1);
        let alone = |setting: &mut Setting| {
            long(setting);
            setting.believed_nodes = 1;
        };
        let runs = runs_in(spec, &weather, alone);
        assert!(runs.iter().any(|run| run.judge().is_err()), "{spec}");
        let runs = runs_in(spec, &weather, long);
        assert!(runs.iter().all(|run| run.judge().is_ok()), "{spec}");
    }
}

#[test]
fn a_store_that_forgets_or_goes_back_in_time_is_caught_where_that_is_not_forgiven() {
    let flushes = Weather { flushes: 1, ..fair() };
    let failovers = Weather { failovers: 2, lag_us_max: 200_000, ..fair() };
    for (weather, spec) in [
        (&flushes, BUCKET),
        (&flushes, "sliding_window: 10/s"),
        (&failovers, "token_bucket: 30/s burst 5"),
        (&failovers, "quota: 12/day"),
    ] {
        let mut runs = runs_in(spec, weather, |_| {});
        assert!(runs.iter().all(|run| run.judge().is_ok()), "{spec}");
        for run in &mut runs {
            (run.trouble.failovers, run.trouble.set_back_us) = (0, 0);
        }
        assert!(runs.iter().any(|run| run.judge().is_err()), "{spec}");
    }
}

#[test]
fn a_clock_that_was_set_back_is_caught_where_that_is_not_forgiven() {
    let weather = Weather { clock_steps: 2, ..fair() };
    let mut runs = runs_in("token_bucket: 30/s burst 5", &weather, |_| {});
    assert!(runs.iter().all(|run| run.judge().is_ok()));
    for run in &mut runs {
        run.trouble.set_back_us = 0;
    }
    assert!(runs.iter().any(|run| run.judge().is_err()));
}

#[test]
fn denials_that_nothing_was_charged_for_are_caught() {
    let mut runs = runs_in(BUCKET, &Weather { doubled_per_mille: 100, ..fair() }, |_| {});
    assert!(runs.iter().all(|run| run.judge().is_ok()));
    for run in &mut runs {
        let kept = run.charged.len() / 2;
        run.charged.truncate(kept);
    }
    let caught = runs.iter().filter_map(|run| run.judge().err());
    assert!(caught.into_iter().any(|broken| broken.promise == "nobody is denied in vain"));
}

#[test]
fn nodes_that_decide_alone_without_need_are_caught() {
    let mut runs = runs_in(BUCKET, &Weather { cuts: 4, ..fair() }, |_| {});
    for run in &mut runs {
        run.stretches.retain(|stretch| stretch.cut_off.is_empty());
    }
    let caught = runs.iter().filter_map(|run| run.judge().err());
    assert!(caught.into_iter().any(|broken| broken.promise.starts_with("whoever reaches")));
}

/// The bounds are tight: without their allowances runs would break them.
#[test]
fn nodes_that_are_cut_off_do_admit_more_than_one_store_would() {
    let runs = runs_in(BUCKET, &Weather { pauses: 2, ..fair() }, |_| {});
    let strict = Trouble::default();
    let over = |run: &Run| check_bound(&run.log.entries(), &run.spec, &strict).is_err();
    assert!(runs.iter().any(over));
    let fair_runs = runs_in(BUCKET, &fair(), |_| {});
    assert!(!fair_runs.iter().any(over));
}
