//! Specs as policies write them: `20/min burst 5`, `5/day`, `10`, `unlimited`.

use crate::algorithm::{self, ceiling, concurrency, total};
use crate::policy::diagnostics::nearest;
use crate::policy::model::{Algorithm, Setting, Spec};
use crate::rate::{BurstRate, EXACT_MAX, Quota, Rate, RateError};
use crate::units::Amount;

/// Reads a spec of an algorithm. `ttl_us` is the time to live of a concurrency limit's places.
pub(crate) fn parse(algorithm: Algorithm, text: &str, ttl_us: u64) -> Result<Setting, RateError> {
    if text == "unlimited" {
        return Ok(Setting::Unlimited);
    }
    let is_number =
        matches!(algorithm, Algorithm::Concurrency | Algorithm::Total | Algorithm::Ceiling);
    let spec = read(algorithm, text, ttl_us).map_err(|error| match error.help {
        _ if nearest(text, &["unlimited"]).is_some() => error.help("did you mean `unlimited`?"),
        None if is_number && text.contains('/') => error.help("this is a number, not a rate"),
        _ => error,
    })?;
    Ok(Setting::Limited(spec))
}

fn read(algorithm: Algorithm, text: &str, ttl_us: u64) -> Result<Spec, RateError> {
    Ok(Spec::Plain(match algorithm {
        Algorithm::TokenBucket => text.parse::<BurstRate>()?.token_bucket(),
        Algorithm::SlidingWindow => text.parse::<Rate>()?.sliding_window()?,
        Algorithm::SlidingCounter => text.parse::<Rate>()?.sliding_counter(),
        Algorithm::FixedWindow => text.parse::<Rate>()?.fixed_window(),
        Algorithm::Quota => {
            let Quota { limit, unit } = text.parse()?;
            return Ok(Spec::Calendar { limit, unit });
        }
        Algorithm::Concurrency => {
            let places = Amount::parse_count(text)?;
            if places.whole() > EXACT_MAX {
                return Err(RateError::new(text, "at most 65536 here")
                    .help("every holder is remembered, so that there cannot be more"));
            }
            algorithm::Spec::Concurrency(concurrency::Spec { places, lease_us: ttl_us })
        }
        Algorithm::Total => {
            algorithm::Spec::Total(total::Spec { limit: Amount::parse_count(text)? })
        }
        Algorithm::Ceiling => {
            let limit = Amount::parse_count(text).or_else(|_| Amount::parse(text))?;
            algorithm::Spec::Ceiling(ceiling::Spec { limit })
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_spec_is_refused() {
        let wrong = [
            (Algorithm::TokenBucket, "20"),
            (Algorithm::SlidingWindow, "5/min burst 2"),
            (Algorithm::SlidingWindow, "100k/min"),
            (Algorithm::FixedWindow, "5/week"),
            (Algorithm::Quota, "5/h"),
            (Algorithm::Concurrency, "10/s"),
            (Algorithm::Concurrency, "65537"),
            (Algorithm::Total, "-1"),
            (Algorithm::Ceiling, "many"),
        ];
        for (algorithm, text) in wrong {
            assert!(parse(algorithm, text, 60_000_000).is_err(), "{text}");
        }
    }

    #[test]
    fn unlimited_is_a_setting_of_every_algorithm() {
        for algorithm in Algorithm::ALL {
            assert_eq!(parse(algorithm, "unlimited", 60_000_000), Ok(Setting::Unlimited));
        }
    }
}
