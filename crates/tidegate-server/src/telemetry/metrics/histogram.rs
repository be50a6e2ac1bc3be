//! How long things took, in integers.

use arrayvec::ArrayVec;

use super::lanes::Lanes;
use super::text::{Millionths, Page};

/// The upper bounds in microseconds: 10 µs to 1 s.
const BOUNDS_US: [u64; 16] = [
    10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    500_000, 1_000_000,
];
/// Where the sum stands: behind the buckets, of which the last has no bound.
const SUM: usize = BOUNDS_US.len() + 1;

/// A histogram of durations.
#[derive(Debug)]
pub(super) struct Histogram(Lanes<{ SUM + 1 }>);

impl Histogram {
    pub(super) fn new() -> Self {
        Self(Lanes::new())
    }

    pub(super) fn observe(&self, us: u64) {
        self.0.add(BOUNDS_US.partition_point(|bound| *bound < us), 1);
        self.0.add(SUM, us);
    }

    /// Its samples, all with this label if there is one.
    pub(super) fn write(&self, page: &mut Page, name: &str, label: Option<(&str, &str)>) {
        let labels: ArrayVec<(&str, &str), 1> = label.into_iter().collect();
        let bounded = |page: &mut Page, bucket: &str, bound: &str, count: u64| {
            let labels: ArrayVec<(&str, &str), 2> =
                label.into_iter().chain([("le", bound)]).collect();
            page.sample(bucket, &labels, count);
        };
        let bucket = format!("{name}_bucket");
        let mut count = 0;
        for (number, bound_us) in BOUNDS_US.iter().enumerate() {
            count += self.0.sum(number);
            bounded(page, &bucket, &Millionths(*bound_us).to_string(), count);
        }
        count += self.0.sum(BOUNDS_US.len());
        bounded(page, &bucket, "+Inf", count);
        page.sample(&format!("{name}_sum"), &labels, Millionths(self.0.sum(SUM)));
        page.sample(&format!("{name}_count"), &labels, count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_at_its_bound_is_in_the_bucket_and_buckets_add_up() {
        let histogram = Histogram::new();
        [0, 10, 11, 1_000_000, 1_000_001].into_iter().for_each(|us| histogram.observe(us));
        let mut page = Page::default();
        histogram.write(&mut page, "t", None);
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
