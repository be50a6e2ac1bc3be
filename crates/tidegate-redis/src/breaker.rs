//! The circuit breaker: a state machine that decides when to stop calling a server that fails, and when to
//! try again. It reads no clock and sends nothing.
//!
//! ```text
//! healthy ⇄ suspect → open → half-open → merging → healthy
//!                      ↑________↓___________↓
//! ```

use std::fmt;

/// How many failures in a row open it.
const CONSECUTIVE_MAX: u32 = 5;
/// Of at least this many calls in ten seconds, half must fail to open it.
const CALLS_MIN: u32 = 20;
/// How many calls must succeed after the probe.
const SUCCESSES: u32 = 3;
const SECOND_US: u64 = 1_000_000;
const WAIT_FIRST_US: u64 = SECOND_US;
const WAIT_MAX_US: u64 = 30 * SECOND_US;
/// Recent calls are counted by the second.
const SLICES: usize = 10;

/// The state of a breaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BreakerState {
    /// The server answers.
    Healthy,
    /// The last call failed; calls go on.
    Suspect,
    /// No calls are made.
    Open,
    /// One probe is under way.
    HalfOpen,
    /// The probe was answered: calls are made again, and one failure opens the breaker.
    Merging,
}

impl BreakerState {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Healthy, Self::Suspect, Self::Open, Self::HalfOpen, Self::Merging];

    /// Its name in status, metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Suspect => "suspect",
            Self::Open => "open",
            Self::HalfOpen => "half-open",
            Self::Merging => "merging",
        }
    }

    /// Orders states by how bad they are.
    pub(crate) const fn severity(self) -> u8 {
        match self {
            Self::Healthy => 0,
            Self::Suspect => 1,
            Self::Merging => 2,
            Self::HalfOpen => 3,
            Self::Open => 4,
        }
    }

    /// True if calls are made.
    #[must_use]
    pub const fn allows_calls(self) -> bool {
        matches!(self, Self::Healthy | Self::Suspect | Self::Merging)
    }
}

impl fmt::Display for BreakerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The permission for one call. It is returned with the outcome, which counts only if the breaker has not
/// opened since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Permit(u64);

/// The breaker of one server.
#[derive(Clone, Debug)]
pub(crate) struct Breaker {
    state: BreakerState,
    since_us: u64,
    /// How often it opened. Outcomes of calls from before are ignored.
    round: u64,
    consecutive: u32,
    successes: u32,
    recent: Recent,
    /// How long it stays open, before jitter.
    wait_us: u64,
    probe_at_us: u64,
}

impl Breaker {
    /// A new breaker is open, and its probe is due.
    pub(crate) fn new(now_us: u64) -> Self {
        Self {
            state: BreakerState::Open,
            since_us: now_us,
            round: 0,
            consecutive: 0,
            successes: 0,
            recent: Recent::default(),
            wait_us: WAIT_FIRST_US / 2,
            probe_at_us: now_us,
        }
    }

    pub(crate) fn state(&self) -> BreakerState {
        self.state
    }

    /// Since when it is in its state.
    pub(crate) fn since_us(&self) -> u64 {
        self.since_us
    }

    pub(crate) fn permit(&self) -> Option<Permit> {
        self.state.allows_calls().then_some(Permit(self.round))
    }

    /// When the next probe is due, while it is open.
    pub(crate) fn probe_at_us(&self) -> Option<u64> {
        (self.state == BreakerState::Open).then_some(self.probe_at_us)
    }

    /// Begins the probe if it is due; true for one caller.
    pub(crate) fn start_probe(&mut self, now_us: u64) -> bool {
        let due = self.probe_at_us().is_some_and(|at_us| at_us <= now_us);
        if due {
            self.enter(BreakerState::HalfOpen, now_us);
        }
        due
    }

    /// Makes the probe due now: the server can be reached again.
    pub(crate) fn hurry(&mut self, now_us: u64) {
        self.probe_at_us = self.probe_at_us.min(now_us);
    }

    /// Records the outcome of the probe. `random` spreads the nodes that lost the server together.
    pub(crate) fn probed(&mut self, answered: bool, now_us: u64, random: u64) {
        match self.state {
            BreakerState::HalfOpen if answered => {
                self.successes = 0;
                self.enter(BreakerState::Merging, now_us);
            }
            BreakerState::HalfOpen => self.open(now_us, random),
            _ => {}
        }
    }

    /// Records the outcome of a call.
    pub(crate) fn called(&mut self, permit: Permit, answered: bool, now_us: u64, random: u64) {
        if permit != Permit(self.round) || !self.state.allows_calls() {
            return;
        }
        self.recent.count(answered, now_us);
        if answered {
            self.succeeded(now_us);
        } else {
            self.failed(now_us, random);
        }
    }

    fn succeeded(&mut self, now_us: u64) {
        self.consecutive = 0;
        match self.state {
            BreakerState::Suspect => self.enter(BreakerState::Healthy, now_us),
            BreakerState::Merging => {
                self.successes += 1;
                if self.successes == SUCCESSES {
                    self.enter(BreakerState::Healthy, now_us);
                }
            }
            _ => {}
        }
    }

    fn failed(&mut self, now_us: u64, random: u64) {
        self.consecutive += 1;
        let trips = self.consecutive >= CONSECUTIVE_MAX || self.recent.mostly_failed(now_us);
        match self.state {
            BreakerState::Merging => self.open(now_us, random),
            _ if trips => {
                self.wait_us = 0;
                self.open(now_us, random);
            }
            BreakerState::Healthy => self.enter(BreakerState::Suspect, now_us),
            _ => {}
        }
    }

    /// Each time in a row waits twice as long as the time before, less up to a quarter.
    fn open(&mut self, now_us: u64, random: u64) {
        self.wait_us = (self.wait_us * 2).clamp(WAIT_FIRST_US, WAIT_MAX_US);
        self.probe_at_us = now_us.saturating_add(self.wait_us - random % (self.wait_us / 4));
        self.round += 1;
        self.consecutive = 0;
        self.recent = Recent::default();
        self.enter(BreakerState::Open, now_us);
    }

    fn enter(&mut self, state: BreakerState, now_us: u64) {
        self.state = state;
        self.since_us = now_us;
    }
}

/// The outcomes of the last ten seconds.
#[derive(Clone, Debug, Default)]
struct Recent {
    slices: [Slice; SLICES],
}

#[derive(Clone, Copy, Debug, Default)]
struct Slice {
    second: u64,
    calls: u32,
    failures: u32,
}

impl Recent {
    fn count(&mut self, answered: bool, now_us: u64) {
        let second = now_us / SECOND_US;
        // The remainder of a division by ten is an index of ten.
        #[allow(clippy::cast_possible_truncation, reason = "it is below ten")]
        let slice = &mut self.slices[(second % SLICES as u64) as usize];
        if slice.second != second {
            *slice = Slice { second, ..Slice::default() };
        }
        slice.calls = slice.calls.saturating_add(1);
        slice.failures = slice.failures.saturating_add(u32::from(!answered));
    }

    fn mostly_failed(&self, now_us: u64) -> bool {
        let oldest = (now_us / SECOND_US).saturating_sub(SLICES as u64 - 1);
        let (mut calls, mut failures) = (0_u64, 0_u64);
        for slice in self.slices.iter().filter(|slice| slice.second >= oldest) {
            calls += u64::from(slice.calls);
            failures += u64::from(slice.failures);
        }
        calls >= u64::from(CALLS_MIN) && failures * 2 >= calls
    }
}

#[cfg(test)]
mod tests;
