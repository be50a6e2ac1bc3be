//! Many nodes on a modelled shared store, over a modelled network, in virtual time.
//!
//! The nodes are real: each has a [`Limiter`](tidegate::Limiter) with its real fallback. The store
//! is a memory behind messages that are late, lost, doubled and overtake each other; it pauses,
//! fails over without its newest writes, forgets everything, and its clock is set. One thread, and
//! all chance comes from the seed: a run that breaks a promise can be run again.
//!
//! Any limit of any policy can be simulated. Of a leased limit the nodes borrow with the same table as
//! on a real store, and the store lends by a naive reference.

mod clock;
mod judge;
mod network;
mod node_store;
mod random;
mod server;
mod weather;
mod world;

use std::env;
use std::error::Error;
use std::num::ParseIntError;
use std::ops::RangeInclusive;
use std::sync::Arc;

use tidegate::Policy;
use tidegate::engine::algorithm::Spec;
use tidegate_redis::LoanHealth;

pub use judge::BrokenPromise;
pub use random::Random;
pub use weather::Weather;

use crate::checkers::Entry;
use crate::checkers::trouble::Trouble;
use crate::log::Log;

/// Names the one seed to run.
const VARIABLE: &str = "TIDEGATE_SEED";

const SWEEP_EVERY_US: u64 = 250_000;

/// How long a node waits for the store before it decides alone.
pub const DEADLINE_US: u64 = 20_000;

/// The reason why a simulation cannot start.
pub type SetupError = Box<dyn Error + Send + Sync>;

/// The parameters of a simulation.
#[derive(Clone, Debug)]
pub struct Setting {
    /// One policy with one limit, by user.
    pub policy: Arc<Policy>,
    /// How many nodes there are.
    pub nodes: u32,
    /// The number of nodes that the nodes believe in.
    pub believed_nodes: u32,
    /// How many users there are.
    pub users: u64,
    /// The number of their requests.
    pub requests: usize,
    /// The longest time between two requests.
    pub gap_us_max: u64,
    /// The number of requests in a thousand that follow a long pause.
    pub lulls_per_mille: u64,
    /// How often nodes look for unneeded loans.
    pub sweep_every_us: u64,
    /// The possible faults.
    pub weather: Weather,
}

impl Setting {
    /// A deployment whose size, load and weather are drawn from the seed.
    #[must_use]
    pub fn drawn(policy: &Arc<Policy>, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let nodes = 1 + u32::try_from(random.below(6)).unwrap_or(0);
        Self {
            policy: Arc::clone(policy),
            nodes,
            believed_nodes: nodes,
            users: 1 + random.below(2),
            requests: 120,
            gap_us_max: [10_000, 30_000, 80_000][random.index(3)],
            lulls_per_mille: 0,
            sweep_every_us: SWEEP_EVERY_US,
            weather: Weather::drawn(&mut random),
        }
    }

    /// The same for a leased limit: long enough for loans to expire, with pauses in which nodes return
    /// them, and with nodes that forget theirs.
    #[must_use]
    pub fn leased(policy: &Arc<Policy>, seed: u64) -> Self {
        let (mut setting, mut random) = (Self::drawn(policy, seed), Random::new(!seed));
        setting.requests = 1_000;
        setting.gap_us_max = [4_000, 10_000, 20_000][random.index(3)];
        setting.lulls_per_mille = [0, 2, 5][random.index(3)];
        // Nodes that are held up let loans expire.
        setting.sweep_every_us = [SWEEP_EVERY_US, 20 * SWEEP_EVERY_US][random.index(2)];
        setting.weather.longer = [1, 6][random.index(2)];
        setting.weather.crashes = u32::try_from(random.below(3)).unwrap_or(0);
        setting
    }
}

/// The result of a simulation.
#[derive(Debug)]
pub struct Run {
    /// The answers that the callers received.
    pub log: Log,
    /// The numbers of the limit.
    pub spec: Spec,
    /// The faults of the run.
    pub trouble: Trouble,
    /// The same for each stretch in which the same nodes were cut off.
    pub stretches: Vec<Stretch>,
    /// The store's charges, whether or not their answers arrived.
    pub charged: Vec<Entry>,
    /// The true time of each answer in the log.
    completed_us: Vec<u64>,
    /// The loans of the nodes, of leased limits.
    pub borrowed: LoanHealth,
    /// Whether the limit is leased.
    leased: bool,
    /// How far the store's clock was set, back and forth.
    stepped_us: u64,
    /// The times at which nodes held more than the store counted, and how much.
    overlent: Option<(u64, String)>,
}

/// A time in which the same nodes were cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Its first instant, in true time.
    pub from_us: u64,
    /// The first instant after it.
    pub until_us: u64,
    /// The nodes that were cut off.
    pub cut_off: Vec<u32>,
}

/// Simulates a deployment.
///
/// # Errors
/// The policy cannot be put in force, or has no limit.
pub fn simulate(setting: &Setting, seed: u64) -> Result<Run, SetupError> {
    world::World::new(setting, seed).map(world::World::run)
}

/// The seeds to run: `count` seeds, or the one that `TIDEGATE_SEED` names.
///
/// # Errors
/// `TIDEGATE_SEED` is not a number.
pub fn seeds(count: u64) -> Result<RangeInclusive<u64>, ParseIntError> {
    match env::var(VARIABLE) {
        Ok(named) => named.parse().map(|seed| seed..=seed),
        Err(_) => Ok(1..=count),
    }
}
