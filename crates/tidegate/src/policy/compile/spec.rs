//! Specs as policies write them: `20/min burst 5`, `5/day`, `10`, `unlimited`.

use crate::algorithm::{
    self, calendar, ceiling, concurrency, fixed_window, sliding_counter, sliding_window,
    token_bucket, total,
};
use crate::policy::diagnostics::{nearest, shown};
use crate::policy::model::{Algorithm, Setting, Spec};
use crate::units::{Amount, UnitError, parse_period};

/// More entries than this are not kept exactly, nor more places.
const EXACT_MAX: u64 = 65_536;

/// What is wrong with a spec, and what to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SpecError {
    pub(crate) message: String,
    pub(crate) help: Option<&'static str>,
}

impl SpecError {
    fn new(text: &str, expected: &str) -> Self {
        Self { message: format!("found `{}`, expected {expected}", shown(text)), help: None }
    }

    fn help(mut self, help: &'static str) -> Self {
        self.help = Some(help);
        self
    }
}

impl From<UnitError> for SpecError {
    fn from(error: UnitError) -> Self {
        Self { message: error.to_string(), help: None }
    }
}

/// Reads a spec of an algorithm. `ttl_us` is the time to live of a concurrency limit's places.
pub(crate) fn parse(algorithm: Algorithm, text: &str, ttl_us: u64) -> Result<Setting, SpecError> {
    read(algorithm, text, ttl_us).map_err(|error| match (error.help, hint(algorithm, text)) {
        (None, Some(help)) => error.help(help),
        _ => error,
    })
}

/// What was probably meant.
fn hint(algorithm: Algorithm, text: &str) -> Option<&'static str> {
    let period = text
        .split_once('/')
        .map(|(_, period)| period.trim_start_matches(|c: char| c.is_ascii_digit()));
    match (algorithm, period.and_then(|period| period.split_whitespace().next())) {
        _ if nearest(text, &["unlimited"]).is_some() => Some("did you mean `unlimited`?"),
        (Algorithm::Concurrency | Algorithm::Total | Algorithm::Ceiling, Some(_)) => {
            Some("this is a number, not a rate")
        }
        (_, Some("m" | "mn" | "minute" | "minutes" | "mins")) => Some("write `min` for minutes"),
        (_, Some("hour" | "hours" | "hr")) => Some("write `h` for hours"),
        (_, Some("sec" | "second" | "seconds")) => Some("write `s` for seconds"),
        (_, Some("d" | "days")) => Some("write `day` for days"),
        (_, Some(_)) if text.split('/').next().is_some_and(|count| count.ends_with(['K', 'M'])) => {
            Some("write `k` for thousand and `m` for million")
        }
        _ => None,
    }
}

fn read(algorithm: Algorithm, text: &str, ttl_us: u64) -> Result<Setting, SpecError> {
    if text == "unlimited" {
        return Ok(Setting::Unlimited);
    }
    let spec = match algorithm {
        Algorithm::TokenBucket => Spec::Plain(algorithm::Spec::TokenBucket(bucket(text)?)),
        Algorithm::SlidingWindow => {
            let (limit, window_us) = rate(text, "5/min")?;
            at_most_exact(text, limit, "for more, use `sliding_counter`")?;
            Spec::Plain(algorithm::Spec::SlidingWindow(sliding_window::Spec { limit, window_us }))
        }
        Algorithm::SlidingCounter => {
            let (limit, window_us) = rate(text, "1000/min")?;
            Spec::Plain(algorithm::Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }))
        }
        Algorithm::FixedWindow => {
            let (limit, window_us) = rate(text, "100/min")?;
            Spec::Plain(algorithm::Spec::FixedWindow(fixed_window::Spec { limit, window_us }))
        }
        Algorithm::Quota => quota(text)?,
        Algorithm::Concurrency => {
            let places = Amount::parse_count(text)?;
            at_most_exact(
                text,
                places,
                "every holder is remembered, so that there cannot be more",
            )?;
            Spec::Plain(algorithm::Spec::Concurrency(concurrency::Spec {
                places,
                lease_us: ttl_us,
            }))
        }
        Algorithm::Total => {
            Spec::Plain(algorithm::Spec::Total(total::Spec { limit: Amount::parse_count(text)? }))
        }
        Algorithm::Ceiling => {
            let limit = Amount::parse_count(text).or_else(|_| Amount::parse(text))?;
            Spec::Plain(algorithm::Spec::Ceiling(ceiling::Spec { limit }))
        }
    };
    Ok(Setting::Limited(spec))
}

/// `N/PERIOD`.
fn rate(text: &str, example: &str) -> Result<(Amount, u64), SpecError> {
    let Some((count, period)) = text.split_once('/') else {
        return Err(SpecError::new(text, &format!("a rate such as {example}")));
    };
    if period.contains(" burst") {
        return Err(SpecError::new(text, &format!("a rate such as {example}"))
            .help("only a `token_bucket` has a burst"));
    }
    if matches!(period, "week" | "month") {
        return Err(SpecError::new(text, "a period: ms, s, min, h or day")
            .help("weeks and months are for `quota`"));
    }
    Ok((Amount::parse_count(count)?, parse_period(period)?))
}

/// `N/PERIOD`, `N/PERIOD burst B` or `N/PERIOD burst Fx`.
fn bucket(text: &str) -> Result<token_bucket::Spec, SpecError> {
    let (rate_text, burst) = match text.split_once(" burst ") {
        Some((rate, burst)) => (rate, Some(burst)),
        None => (text, None),
    };
    let (count, period_us) = rate(rate_text, "20/min burst 5").map_err(|error| {
        let misspelt = rate_text.contains(" burst");
        SpecError { help: error.help.filter(|_| !misspelt), ..error }
    })?;
    let burst = match burst {
        None => count,
        Some(burst) => match burst.strip_suffix('x') {
            None => Amount::parse_count(burst)?,
            Some(times) => multiplied(count, times).ok_or_else(|| {
                SpecError::new(
                    burst,
                    "a burst such as 5 or 2x, of at least 1 and at most 4000000000",
                )
            })?,
        },
    };
    Ok(token_bucket::Spec { count, period_us, burst })
}

/// Whole units of `count` × `times`, at least one.
fn multiplied(count: Amount, times: &str) -> Option<Amount> {
    let times = Amount::parse(times).ok()?;
    let units = u128::from(count.whole()) * u128::from(times.micros()) / 1_000_000;
    u64::try_from(units).ok().and_then(Amount::from_units).filter(|amount| !amount.is_zero())
}

/// `N/day`, `N/week` or `N/month`.
fn quota(text: &str) -> Result<Spec, SpecError> {
    let expected = "a quota such as 5/day, 3/week or 1000/month";
    let (count, unit) = text.split_once('/').ok_or_else(|| SpecError::new(text, expected))?;
    let unit = match unit {
        "day" => calendar::Unit::Day,
        "week" => calendar::Unit::Week,
        "month" => calendar::Unit::Month,
        _ => {
            let help = "a quota runs over a calendar day, week or month; for other periods use `fixed_window`";
            return Err(SpecError::new(text, expected).help(help));
        }
    };
    Ok(Spec::Calendar { limit: Amount::parse_count(count)?, unit })
}

fn at_most_exact(text: &str, amount: Amount, help: &'static str) -> Result<(), SpecError> {
    if amount.whole() <= EXACT_MAX {
        return Ok(());
    }
    Err(SpecError::new(text, "at most 65536 here").help(help))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(algorithm: Algorithm, text: &str) -> Result<Setting, String> {
        parse(algorithm, text, 60_000_000).map_err(|error| error.message)
    }

    fn bucket_of(text: &str) -> (u64, u64, u64) {
        match spec(Algorithm::TokenBucket, text).unwrap() {
            Setting::Limited(Spec::Plain(algorithm::Spec::TokenBucket(spec))) => {
                (spec.count.whole(), spec.period_us, spec.burst.whole())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn buckets_take_a_burst_in_units_or_as_a_multiple() {
        assert_eq!(bucket_of("20/min burst 5"), (20, 60_000_000, 5));
        assert_eq!(bucket_of("20/s burst 2x"), (20, 1_000_000, 40));
        assert_eq!(bucket_of("10/5min"), (10, 300_000_000, 10));
        assert_eq!(bucket_of("1/500ms"), (1, 500_000, 1));
        assert_eq!(bucket_of("3/s burst 1.5x"), (3, 1_000_000, 4));
    }

    #[test]
    fn what_is_no_spec_is_refused() {
        let wrong = [
            (Algorithm::TokenBucket, "20"),
            (Algorithm::TokenBucket, "20/min burst"),
            (Algorithm::TokenBucket, "20/min burst 0x"),
            (Algorithm::TokenBucket, "20/min  burst 5"),
            (Algorithm::TokenBucket, "20 / min"),
            (Algorithm::SlidingWindow, "5/min burst 2"),
            (Algorithm::SlidingWindow, "0/min"),
            (Algorithm::SlidingWindow, "100k/min"),
            (Algorithm::FixedWindow, "5/week"),
            (Algorithm::Quota, "5/2day"),
            (Algorithm::Quota, "5/h"),
            (Algorithm::Concurrency, "10/s"),
            (Algorithm::Total, "-1"),
            (Algorithm::Ceiling, "many"),
        ];
        for (algorithm, text) in wrong {
            assert!(spec(algorithm, text).is_err(), "{text}");
        }
    }

    #[test]
    fn unlimited_is_a_setting_of_every_algorithm() {
        for algorithm in Algorithm::ALL {
            assert_eq!(spec(algorithm, "unlimited"), Ok(Setting::Unlimited));
        }
    }
}
