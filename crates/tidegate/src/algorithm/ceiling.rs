//! A ceiling on one value of the request itself. Nothing is stored, so nothing is ever owed.

use serde::{Deserialize, Serialize};

use super::{Amount, DENIED_FOR_GOOD, Reading, Verdict, as_micros};

/// The largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The limit, itself still allowed.
    #[serde(with = "as_micros")]
    pub limit: Amount,
}

/// Is the value within the ceiling? If not, no waiting helps.
#[must_use]
pub fn evaluate(spec: &Spec, value: Amount) -> Verdict {
    if value <= spec.limit { Verdict::Allowed } else { DENIED_FOR_GOOD }
}

/// How much larger the value could have been.
#[must_use]
pub fn reading(spec: &Spec, value: Amount) -> Reading {
    Reading { available: spec.limit.saturating_sub(value), reset_us: None }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn amount(micros: u64) -> Amount {
        Amount::from_micros(micros).unwrap()
    }

    proptest! {
        #[test]
        fn a_value_passes_up_to_the_ceiling(limit in 0..2_000_000_u64, value in 0..2_000_000_u64) {
            let spec = Spec { limit: amount(limit) };
            let allowed = evaluate(&spec, amount(value)) == Verdict::Allowed;
            prop_assert_eq!(allowed, value <= limit);
            let available = amount(limit.saturating_sub(value));
            let reading = reading(&spec, amount(value));
            prop_assert_eq!(reading, Reading { available, reset_us: None });
        }
    }

    #[test]
    fn the_ceiling_itself_is_allowed_and_a_millionth_more_is_denied_for_good() {
        let spec = Spec { limit: Amount::ONE };
        assert_eq!(evaluate(&spec, Amount::ONE), Verdict::Allowed);
        assert_eq!(evaluate(&spec, amount(1_000_001)), DENIED_FOR_GOOD);
    }
}
