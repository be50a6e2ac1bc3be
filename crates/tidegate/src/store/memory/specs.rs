//! The numbers that the keys of a limit were charged with, so that a slot can name them in a byte.

use std::sync::{OnceLock, PoisonError};

use super::rate::Rate;
use crate::algorithm::Spec;
use crate::sync::{AtomicUsize, Mutex, Ordering};

/// So many fit a byte. Keys with yet other numbers are kept in full.
const SPECS_MAX: usize = 256;

/// How many further ones there is room for at once.
const LOT: usize = 16;

/// A bucket whose remainder takes more is kept in full.
const REMAINDER_BITS_MAX: u32 = 40;

/// Whether the states of a spec are small enough for slots, as a rule.
pub(super) const fn fit_slots(spec: &Spec) -> bool {
    match spec {
        Spec::TokenBucket(_)
        | Spec::FixedWindow(_)
        | Spec::Quota(_)
        | Spec::SlidingCounter(_)
        | Spec::Total(_) => true,
        Spec::SlidingWindow(_) | Spec::Concurrency(_) | Spec::Ceiling(_) => false,
    }
}

/// The specs of one limit, by number. They are few: one for each tier, row and factor.
#[derive(Debug)]
pub(super) struct Specs {
    /// Most limits have one spec.
    first: OnceLock<Known>,
    others: [OnceLock<Box<[OnceLock<Known>; LOT]>>; SPECS_MAX / LOT],
    count: AtomicUsize,
    adding: Mutex<()>,
}

/// A spec, and how its remainder is packed.
#[derive(Debug)]
pub(super) struct Known {
    /// Of a quota without the edges of its windows, which are others every day.
    pub(super) spec: Spec,
    /// All remainders of this bucket are multiples of it.
    pub(super) remainder_unit: u64,
    /// The same bucket as its slots have it.
    pub(super) rate: Rate,
}

impl Default for Specs {
    fn default() -> Self {
        Self {
            first: OnceLock::new(),
            others: [const { OnceLock::new() }; SPECS_MAX / LOT],
            count: AtomicUsize::new(0),
            adding: Mutex::default(),
        }
    }
}

impl Specs {
    #[inline]
    pub(super) fn get(&self, number: u8) -> Option<&Known> {
        match number {
            0 => self.first.get(),
            _ => self.others[usize::from(number) / LOT].get()?[usize::from(number) % LOT].get(),
        }
    }

    /// The number of a spec, which is new if nobody has used it; `None` where there are too many, or
    /// its states do not fit a slot.
    pub(super) fn number_of(&self, spec: &Spec) -> Option<u8> {
        if fit_slots(spec) { self.any_number_of(spec) } else { None }
    }

    /// The same, whether its states fit a slot or not.
    pub(super) fn any_number_of(&self, spec: &Spec) -> Option<u8> {
        if let Some((number, _)) = self.find(spec) {
            return Some(number);
        }
        // Known without a lock: whoever asks holds a segment, and asks for each request.
        let known = (self.count.load(Ordering::Acquire) < SPECS_MAX).then(|| Known::new(spec))?;
        if known.rate.remainder_bits > REMAINDER_BITS_MAX { None } else { self.add(known) }
    }

    /// A spec that somebody has used, and its number.
    pub(super) fn find(&self, spec: &Spec) -> Option<(u8, &Known)> {
        let numbers = 0..self.count.load(Ordering::Acquire);
        let mut numbers = numbers.filter_map(|number| u8::try_from(number).ok());
        numbers.find_map(|number| {
            let known = self.get(number).filter(|known| known.is(spec))?;
            Some((number, known))
        })
    }

    fn add(&self, known: Known) -> Option<u8> {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Ordering::Acquire);
        if let Some((number, _)) = self.find(&known.spec) {
            return Some(number);
        }
        if count == SPECS_MAX {
            return None;
        }
        let others = || &self.others[count / LOT].get_or_init(Box::default)[count % LOT];
        let room = if count == 0 { &self.first } else { others() };
        room.get_or_init(|| known);
        self.count.store(count + 1, Ordering::Release);
        u8::try_from(count).ok()
    }
}

impl Known {
    /// Whether it is this bucket: quicker than to compare them whatever they are.
    #[inline]
    pub(super) fn is_bucket(&self, spec: &Spec) -> bool {
        matches!((&self.spec, spec), (Spec::TokenBucket(known), Spec::TokenBucket(spec)) if known == spec)
    }

    /// Whether it is this spec.
    #[inline]
    pub(super) fn is(&self, spec: &Spec) -> bool {
        match (&self.spec, spec) {
            (Spec::Quota(known), Spec::Quota(spec)) => *known == spec.without_edges(),
            (known, spec) => known == spec,
        }
    }

    fn new(spec: &Spec) -> Self {
        let rate = Rate::of(spec);
        let remainder_unit = match spec {
            Spec::TokenBucket(spec) => spec.period_us.max(1) / rate.spec.period_us,
            _ => 1,
        };
        let spec = match spec {
            Spec::Quota(spec) => Spec::Quota(spec.without_edges()),
            spec => *spec,
        };
        Self { spec, remainder_unit, rate }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::algorithm::{concurrency, token_bucket, total};
    use crate::units::Amount;

    fn total(units: u64) -> Spec {
        Spec::Total(total::Spec { limit: Amount::from_units(units).unwrap() })
    }

    #[test]
    fn a_spec_keeps_its_number_and_there_are_only_so_many() {
        let specs = Specs::default();
        let numbers: Vec<Option<u8>> =
            (0..300).map(|units| specs.number_of(&total(units))).collect();
        assert_eq!(numbers[7], Some(7));
        assert_eq!(specs.number_of(&total(7)), Some(7));
        assert_eq!(specs.get(7).unwrap().spec, total(7));
        assert_eq!(numbers.iter().flatten().count(), SPECS_MAX);
        let places = concurrency::Spec { places: Amount::ONE, lease_us: 1 };
        assert_eq!(Specs::default().number_of(&Spec::Concurrency(places)), None);
    }

    #[test]
    fn what_does_not_fit_waits_for_nobody() {
        let specs = Arc::new(Specs::default());
        let (count, period_us) = (Amount::from_micros(1).unwrap(), (1 << 41) + 1);
        let fine = Spec::TokenBucket(token_bucket::Spec { count, period_us, burst: count });
        assert!(Known::new(&fine).rate.remainder_bits > REMAINDER_BITS_MAX);
        for spec in [fine, total(SPECS_MAX as u64)] {
            let adding = specs.adding.lock().unwrap();
            let (tell, told) = channel();
            let asked = Arc::clone(&specs);
            thread::spawn(move || tell.send(asked.number_of(&spec)));
            assert_eq!(told.recv_timeout(Duration::from_secs(20)), Ok(None), "{spec:?}");
            drop(adding);
            (0..SPECS_MAX as u64).for_each(|units| {
                specs.number_of(&total(units));
            });
        }
    }

    #[test]
    fn remainders_are_counted_in_the_coarsest_unit() {
        let bits = |units: u64, period_us: u64| {
            let count = Amount::from_units(units).unwrap();
            let spec = token_bucket::Spec { count, period_us, burst: count };
            Known::new(&Spec::TokenBucket(spec)).rate.remainder_bits
        };
        assert_eq!(bits(1, 1_000_000), 0, "a millionth each microsecond");
        assert_eq!(bits(1_000, 86_400_000_000), 9);
        assert_eq!(bits(7, 3 * 86_400_000_000), 18);
        assert_eq!(bits(0, 1_000_000), 0, "never refilled");
    }
}
