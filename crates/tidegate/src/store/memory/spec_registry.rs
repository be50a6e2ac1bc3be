//! The specs that the keys of a limit were charged with, numbered, so that a slot names its spec in one byte.

use std::sync::{OnceLock, PoisonError};

use crate::algorithm::{Spec, token_bucket};
use crate::sync::{AtomicUsize, Mutex, Ordering};
use crate::units::Amount;

/// As many as a byte can name. Keys with further specs go to the overflow.
const SPECS_MAX: usize = 256;
/// How many further specs are allocated at once.
const CHUNK: usize = 16;
/// A bucket with a longer remainder goes to the overflow.
const REMAINDER_BITS_MAX: u32 = 40;

/// True if the states of a spec are small enough for slots, as a rule.
pub(super) const fn fits_slot(spec: &Spec) -> bool {
    match spec {
        Spec::TokenBucket(_)
        | Spec::FixedWindow(_)
        | Spec::Quota(_)
        | Spec::SlidingCounter(_)
        | Spec::Total(_) => true,
        Spec::SlidingWindow(_) | Spec::Concurrency(_) | Spec::Ceiling(_) => false,
    }
}

/// The specs of one limit by number. There are few: one for each tier, row and factor.
#[derive(Debug)]
pub(super) struct SpecRegistry {
    /// Most limits have one spec.
    first: OnceLock<RegisteredSpec>,
    others: [OnceLock<Box<[OnceLock<RegisteredSpec>; CHUNK]>>; SPECS_MAX / CHUNK],
    count: AtomicUsize,
    adding: Mutex<()>,
}

/// A spec, and how its slots store a bucket.
#[derive(Debug)]
pub(super) struct RegisteredSpec {
    /// A quota stands here without the edges of its windows, which differ every day.
    pub(super) spec: Spec,
    pub(super) bucket: BucketLayout,
}

impl Default for SpecRegistry {
    fn default() -> Self {
        Self {
            first: OnceLock::new(),
            others: [const { OnceLock::new() }; SPECS_MAX / CHUNK],
            count: AtomicUsize::new(0),
            adding: Mutex::default(),
        }
    }
}

impl SpecRegistry {
    #[inline]
    pub(super) fn get(&self, number: u8) -> Option<&RegisteredSpec> {
        match number {
            0 => self.first.get(),
            _ => self.others[usize::from(number) / CHUNK].get()?[usize::from(number) % CHUNK].get(),
        }
    }

    /// A registered spec and its number.
    pub(super) fn find(&self, spec: &Spec) -> Option<(u8, &RegisteredSpec)> {
        let numbers = 0..self.count.load(Ordering::Acquire);
        let mut numbers = numbers.filter_map(|number| u8::try_from(number).ok());
        numbers.find_map(|number| {
            let registered = self.get(number).filter(|registered| registered.is(spec))?;
            Some((number, registered))
        })
    }

    /// The number of a spec, which is registered if it is new; `None` if the registry is full or the remainder of
    /// a bucket is too long.
    pub(super) fn number_of(&self, spec: &Spec) -> Option<u8> {
        if let Some((number, _)) = self.find(spec) {
            return Some(number);
        }
        // Refused without a lock: the caller holds a segment, and asks for each request.
        if self.count.load(Ordering::Acquire) >= SPECS_MAX {
            return None;
        }
        let registered = RegisteredSpec::new(spec);
        if registered.bucket.remainder_bits > REMAINDER_BITS_MAX {
            return None;
        }
        self.add(registered)
    }

    fn add(&self, registered: RegisteredSpec) -> Option<u8> {
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let count = self.count.load(Ordering::Acquire);
        if let Some((number, _)) = self.find(&registered.spec) {
            return Some(number);
        }
        if count == SPECS_MAX {
            return None;
        }
        let others = || &self.others[count / CHUNK].get_or_init(Box::default)[count % CHUNK];
        let entry = if count == 0 { &self.first } else { others() };
        entry.get_or_init(|| registered);
        self.count.store(count + 1, Ordering::Release);
        u8::try_from(count).ok()
    }
}

impl RegisteredSpec {
    fn new(spec: &Spec) -> Self {
        let bucket = BucketLayout::new(spec);
        let spec = match spec {
            Spec::Quota(spec) => Spec::Quota(spec.without_edges()),
            spec => *spec,
        };
        Self { spec, bucket }
    }

    #[inline]
    pub(super) fn is(&self, spec: &Spec) -> bool {
        match (&self.spec, spec) {
            (Spec::TokenBucket(registered), Spec::TokenBucket(spec)) => registered == spec,
            (Spec::Quota(registered), Spec::Quota(spec)) => *registered == spec.without_edges(),
            (registered, spec) => registered == spec,
        }
    }
}

/// How slots store the buckets of a spec: debt and remainder share one word.
///
/// The rate is reduced to lowest terms, so that remainders are short: 1,000 a day have 432 different remainders,
/// not 86,400,000,000. A packed bucket is charged under the reduced spec, without being expanded; a property
/// compares the answers with those of the spec itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketLayout {
    /// The spec in lowest terms.
    pub(super) spec: token_bucket::Spec,
    /// All remainders of the spec itself are multiples of this number.
    remainder_unit: u64,
    pub(super) remainder_bits: u32,
    /// The largest debt that fits beside a remainder.
    owed_max: u64,
}

impl BucketLayout {
    /// The layout for a spec; one that nobody uses if the spec is no bucket.
    fn new(spec: &Spec) -> Self {
        let (spec, remainder_unit) = match spec {
            Spec::TokenBucket(spec) => reduce(spec),
            _ => (token_bucket::Spec { count: Amount::ZERO, period_us: 1, burst: Amount::ZERO }, 1),
        };
        let remainder_bits = u64::BITS - (spec.period_us - 1).leading_zeros();
        let owed_max = u64::MAX.checked_shr(remainder_bits).unwrap_or(0);
        Self { spec, remainder_unit, remainder_bits, owed_max }
    }

    /// The word of a bucket under the reduced spec; `None` if the bucket does not fit.
    #[inline(always)]
    pub(super) fn pack(&self, bucket: &token_bucket::State) -> Option<u64> {
        let payload = || bucket.owed_micros << self.remainder_bits | bucket.remainder;
        (bucket.owed_micros <= self.owed_max).then(payload)
    }

    /// The bucket under the reduced spec. A slot does not know since when the bucket owes, nor its low-water mark.
    #[inline(always)]
    pub(super) fn unpack(&self, payload: u64, at_us: u64) -> token_bucket::State {
        let owed_micros = payload >> self.remainder_bits;
        let remainder = payload ^ owed_micros << self.remainder_bits;
        let (owing_since_us, low_micros) = (at_us, u64::MAX);
        token_bucket::State { owed_micros, remainder, at_us, owing_since_us, low_micros }
    }

    /// As [`pack`](Self::pack), of a bucket under the spec itself.
    pub(super) fn pack_expanded(&self, bucket: &token_bucket::State) -> Option<u64> {
        let remainder = bucket.remainder / self.remainder_unit;
        let fits =
            remainder * self.remainder_unit == bucket.remainder && remainder < self.spec.period_us;
        if fits { self.pack(&token_bucket::State { remainder, ..bucket.clone() }) } else { None }
    }

    /// As [`unpack`](Self::unpack), of a bucket under the spec itself.
    pub(super) fn unpack_expanded(&self, payload: u64, at_us: u64) -> token_bucket::State {
        let bucket = self.unpack(payload, at_us);
        let remainder = bucket.remainder.wrapping_mul(self.remainder_unit);
        token_bucket::State { remainder, ..bucket }
    }
}

/// The spec with its rate in lowest terms, and the factor that was taken out.
fn reduce(spec: &token_bucket::Spec) -> (token_bucket::Spec, u64) {
    let period_us = spec.period_us.max(1);
    let (mut divisor, mut rest) = (period_us, spec.count.micros());
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    let count = Amount::from_micros(spec.count.micros() / divisor).unwrap_or(spec.count);
    let reduced = token_bucket::Spec { count, period_us: period_us / divisor, burst: spec.burst };
    (reduced, divisor)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Verdict, concurrency, total};

    fn total(units: u64) -> Spec {
        Spec::Total(total::Spec { limit: Amount::from_units(units).unwrap() })
    }

    #[test]
    fn a_spec_keeps_its_number_and_there_are_only_so_many() {
        let specs = SpecRegistry::default();
        let numbers: Vec<Option<u8>> =
            (0..300).map(|units| specs.number_of(&total(units))).collect();
        assert_eq!(numbers[7], Some(7));
        assert_eq!(specs.number_of(&total(7)), Some(7));
        assert_eq!(specs.get(7).unwrap().spec, total(7));
        assert_eq!(numbers.iter().flatten().count(), SPECS_MAX);
        let places = concurrency::Spec { places: Amount::ONE, lease_us: 1 };
        assert!(!fits_slot(&Spec::Concurrency(places)));
    }

    #[test]
    fn what_does_not_fit_waits_for_nobody() {
        let specs = Arc::new(SpecRegistry::default());
        let (count, period_us) = (Amount::from_micros(1).unwrap(), (1 << 41) + 1);
        let fine = Spec::TokenBucket(token_bucket::Spec { count, period_us, burst: count });
        assert!(RegisteredSpec::new(&fine).bucket.remainder_bits > REMAINDER_BITS_MAX);
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
            RegisteredSpec::new(&Spec::TokenBucket(spec)).bucket.remainder_bits
        };
        assert_eq!(bits(1, 1_000_000), 0, "a millionth each microsecond");
        assert_eq!(bits(1_000, 86_400_000_000), 9);
        assert_eq!(bits(7, 3 * 86_400_000_000), 18);
        assert_eq!(bits(0, 1_000_000), 0, "never refilled");
    }

    /// Of every size up to this, small ones as often as large ones.
    fn up_to(bits: u32) -> impl Strategy<Value = u64> + Clone {
        (1..=bits, any::<u64>()).prop_map(|(bits, number)| number >> (u64::BITS - bits))
    }

    type Life = (u64, u64, u64, u64, Vec<(u64, u64, u8)>);

    /// A count, a period, a burst, what is owed at first, and what is asked for, how much later. Half of
    /// them are so small that debts are often paid to the millionth.
    fn lives() -> impl Strategy<Value = Life> {
        prop_oneof![Just([4; 4]), Just([45, 45, 40, 30])].prop_flat_map(|bits| {
            let [numbers, owed, cost, later_us] = bits.map(up_to);
            let asked = prop::collection::vec((cost, later_us, 0..8_u8), 1..20);
            (numbers.clone(), numbers.clone(), numbers, owed, asked)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(5_000))]

        #[test]
        fn a_packed_bucket_answers_as_the_spec_itself_does(life in lives(), common in 1..5_000_u64) {
            let (count, period_us, burst, owed_micros, asked) = life;
            let common = if period_us < 16 { 1 } else { common };
            let amount = |micros| Amount::from_micros(micros).unwrap_or(Amount::MAX);
            let count = amount(count / common * common);
            let period_us = (period_us + 1).div_ceil(common) * common;
            let spec = token_bucket::Spec { count, period_us, burst: amount(burst) };
            let registered = RegisteredSpec::new(&Spec::TokenBucket(spec));
            prop_assume!(registered.bucket.remainder_bits <= REMAINDER_BITS_MAX);
            // Some live at the end of the time that fits.
            let mut now_us = if common % 4 == 0 { (1 << 52) - 1 } else { 1 << 50 };
            let mut state =
                token_bucket::State { owed_micros, at_us: now_us, ..Default::default() };
            for (cost, later_us, turn) in asked {
                let cost = amount(cost);
                match turn {
                    // A clock that lags behind, and a debt that nobody asked for.
                    0 => now_us -= later_us,
                    1 => token_bucket::debit(&mut state, &spec, now_us, cost),
                    _ => now_us += later_us,
                }
                let bucket = &registered.bucket;
                let Some(payload) = bucket.pack_expanded(&state) else { return Ok(()) };
                let mut packed = bucket.unpack(payload, state.at_us);
                let verdict = token_bucket::evaluate(&state, &spec, now_us, cost);
                if verdict == Verdict::Allowed {
                    token_bucket::charge(&mut state, &spec, now_us, cost);
                }
                prop_assert_eq!(token_bucket::take(&mut packed, &bucket.spec, now_us, cost), verdict);
                prop_assert_eq!(
                    token_bucket::settled_reading(&packed, &bucket.spec, now_us),
                    token_bucket::reading(&state, &spec, now_us)
                );
                if verdict == Verdict::Allowed && !cost.is_zero() {
                    prop_assert_eq!(bucket.pack(&packed), bucket.pack_expanded(&state));
                }
            }
        }
    }
}
