//! Histograms of durations, in integers.

use arrayvec::ArrayVec;

use super::striped_counters::StripedCounters;
use super::text::{Millionths, Samples};

/// The upper bounds in microseconds: 10 µs to 1 s.
const BOUNDS_US: [u64; 16] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000,
];
/// The sum stands behind the buckets, of which the last has no bound.
const SUM: usize = BOUNDS_US.len() + 1;

/// A histogram of durations.
#[derive(Debug)]
pub(super) struct Histogram(StripedCounters<{ SUM + 1 }>);

impl Histogram {
    pub(super) fn new() -> Self {
        Self(StripedCounters::new())
    }

    pub(super) fn observe(&self, us: u64) {
        self.0.add(BOUNDS_US.partition_point(|bound| *bound < us), 1);
        self.0.add(SUM, us);
    }

    /// Writes its samples, all with this label if there is one.
    pub(super) fn write(&self, samples: &mut Samples<'_>, label: Option<(&str, &str)>) {
        let mut count = 0;
        for number in 0..=BOUNDS_US.len() {
            count += self.0.sum(number);
            let bound = BOUNDS_US.get(number);
            let bound = bound.map_or("+Inf".to_owned(), |us| Millionths(*us).to_string());
            let labels: ArrayVec<(&str, &str), 2> =
                label.into_iter().chain([("le", bound.as_str())]).collect();
            samples.suffixed("_bucket", &labels, count);
        }
        let labels: ArrayVec<(&str, &str), 1> = label.into_iter().collect();
        samples.suffixed("_sum", &labels, Millionths(self.0.sum(SUM)));
        samples.suffixed("_count", &labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::{Kind, Page};
    use super::*;

    #[test]
    fn a_duration_at_its_bound_is_in_the_bucket_and_buckets_add_up() {
        let histogram = Histogram::new();
        [0, 10, 11, 1_000_000, 1_000_001].into_iter().for_each(|us| histogram.observe(us));
        let mut page = Page::default();
        page.family(("t", Kind::Histogram, "Time."), |samples| histogram.write(samples, None));
        let text = page.into_text();
        for line in [
            "t_bucket{le=\"0.00001\"} 2",
            "t_bucket{le=\"0.000025\"} 3",
            "t_bucket{le=\"0.5\"} 3",
            "t_bucket{le=\"1\"} 4",
            "t_bucket{le=\"+Inf\"} 5",
            "t_sum 2.000022",
            "t_count 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} in {text}");
        }
    }
}
