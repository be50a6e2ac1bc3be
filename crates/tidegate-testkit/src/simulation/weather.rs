//! What may go wrong in a run, and when it does.

use super::network::Event;
use super::random::Random;

/// The possible faults. By default there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Weather {
    /// The longest that a message is on its way. From half the deadline on, answers come too late.
    pub delay_us_max: u64,
    /// How many messages in a thousand get lost.
    pub lost_per_mille: u64,
    /// How many requests in a thousand arrive twice.
    pub doubled_per_mille: u64,
    /// Whether the store knows a request again, and answers it as before.
    pub knows_repeats: bool,
    /// How often single nodes are cut off for a while.
    pub cuts: u32,
    /// How often the store pauses; what came meanwhile is carried out late.
    pub pauses: u32,
    /// How often it fails over, without its newest writes and to another clock.
    pub failovers: u32,
    /// The longest time of newest writes that a failover loses.
    pub lag_us_max: u64,
    /// How often it forgets everything.
    pub flushes: u32,
    /// How often its clock is set, forwards or back.
    pub clock_steps: u32,
    /// The largest error of the nodes' clocks.
    pub skew_us_max: u32,
    /// How many times as long outages may last.
    pub longer: u64,
    /// How often a node forgets its loans.
    pub crashes: u32,
    /// Whether loans are carried out twice, which no connection does: shows that this matters.
    pub doubles_loans: bool,
}

/// How far clocks are set, or differ between servers, at most.
const STEP_US_MAX: u32 = 300_000;
/// How long a node is cut off, or the store pauses, at most.
const OUTAGE_US_MAX: u64 = 700_000;

impl Weather {
    /// Draws random weather: fair as often as foul, and seldom everything at once.
    pub(super) fn drawn(random: &mut Random) -> Self {
        let mut often = |most: u64| {
            let happens = random.per_mille(300);
            u32::try_from(if happens { 1 + random.below(most) } else { 0 }).unwrap_or(0)
        };
        let (cuts, pauses, failovers) = (often(4), often(2), often(2));
        let (flushes, clock_steps) = (often(1), often(2));
        Self {
            delay_us_max: [500, 9_000, 9_000, 30_000][random.index(4)],
            lost_per_mille: [0, 0, 0, 30, 200][random.index(5)],
            doubled_per_mille: [0, 0, 30, 200][random.index(4)],
            knows_repeats: random.per_mille(500),
            cuts,
            pauses,
            failovers,
            lag_us_max: 200_000,
            flushes,
            clock_steps,
            skew_us_max: [0, 400_000][random.index(2)],
            longer: 1,
            crashes: 0,
            doubles_loans: false,
        }
    }

    /// Whether any node may have to do without the store at any time.
    pub(super) fn is_unreliable(&self, deadline_us: u64) -> bool {
        self.lost_per_mille > 0 || 2 * self.delay_us_max >= deadline_us
    }

    /// The faults and their times, in a run of this length.
    pub(super) fn forecast(
        &self,
        from_us: u64,
        length_us: u64,
        nodes: u32,
        random: &mut Random,
    ) -> Vec<(u64, Event)> {
        let (mut events, outage_us_max) = (Vec::new(), OUTAGE_US_MAX * self.longer.max(1));
        let at_us = |random: &mut Random| from_us + random.below(length_us);
        for _ in 0..self.cuts {
            let start_us = at_us(random);
            let node = u32::try_from(random.below(u64::from(nodes))).unwrap_or(0);
            events.push((start_us, Event::Cut { node }));
            events.push((start_us + random.below(outage_us_max), Event::Heal { node }));
        }
        for _ in 0..self.pauses {
            let start_us = at_us(random);
            events.push((start_us, Event::Pause));
            events.push((start_us + random.below(outage_us_max), Event::Resume));
        }
        for _ in 0..self.failovers {
            let lag_us = random.below(self.lag_us_max);
            let by_us = random.around_zero(STEP_US_MAX);
            events.push((at_us(random), Event::FailOver { lag_us, by_us }));
        }
        for _ in 0..self.flushes {
            events.push((at_us(random), Event::Flush));
        }
        for _ in 0..self.clock_steps {
            let by_us = random.around_zero(STEP_US_MAX);
            events.push((at_us(random), Event::SetClock { by_us }));
        }
        for _ in 0..self.crashes {
            let node = u32::try_from(random.below(u64::from(nodes))).unwrap_or(0);
            events.push((at_us(random), Event::Crash { node }));
        }
        events
    }
}
