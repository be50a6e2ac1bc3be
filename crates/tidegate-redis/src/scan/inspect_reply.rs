//! Reads the reply of the script that inspects states.

use redis::Value;
use tidegate::Amount;
use tidegate::engine::algorithm::{
    Pace, Reading, Spec, calendar, concurrency, fixed_window, quota, sliding_counter,
    sliding_window, token_bucket, total,
};
use tidegate::engine::store::KeyUsage;

use super::StoredKey;
use crate::codec::Reader;
use crate::connection::Failure;

/// One state for each name; `None` where there is no key.
pub(super) fn read(names: &[String], reply: Value) -> Result<Vec<Option<StoredKey>>, Failure> {
    let unreadable = || Failure::unreadable("what the script says of keys has another shape");
    let Value::Array(replies) = reply else { return Err(unreadable()) };
    if replies.len() != names.len() {
        return Err(unreadable());
    }
    let state = |(name, reply): (&String, Value)| match reply {
        Value::BulkString(value) if value.is_empty() => Ok(None),
        Value::BulkString(value) => {
            let usage = read_usage(&value).ok_or_else(unreadable)?;
            Ok(Some(StoredKey { name: name.clone(), usage }))
        }
        _ => Err(unreadable()),
    };
    names.iter().zip(replies).map(state).collect()
}

fn read_usage(value: &[u8]) -> Option<Result<KeyUsage, String>> {
    let mut reader = Reader::new(value);
    let kind = reader.byte()?;
    let ttl_ms = reader.optional()?;
    if kind == 0 {
        return Some(Err(reader.text()));
    }
    let accounts = reader.byte()?;
    let paces =
        (0..accounts).map(|_| read_pace(kind, &mut reader)).collect::<Option<Vec<Pace>>>()?;
    let ends_in_us = ttl_ms.map(|ms| ms.saturating_mul(1_000));
    (!paces.is_empty() && reader.is_over()).then(|| Ok(KeyUsage::new(paces, ends_in_us)))
}

fn read_pace(kind: u8, reader: &mut Reader<'_>) -> Option<Pace> {
    let reading =
        Reading { available: Amount::from_micros(reader.number()?)?, reset_us: reader.optional()? };
    let mut numbers = [0; 6];
    for number in &mut numbers {
        *number = reader.number()?;
    }
    Some(Pace { spec: read_spec(kind, numbers)?, reading })
}

fn read_spec(kind: u8, numbers: [u64; 6]) -> Option<Spec> {
    let [first, second, third, fourth, fifth, sixth] = numbers;
    let (limit, window_us) = (Amount::from_micros(first)?, second);
    Some(match kind {
        1 => Spec::TokenBucket(token_bucket::Spec {
            count: limit,
            period_us: second,
            burst: Amount::from_micros(third)?,
        }),
        2 => Spec::SlidingWindow(sliding_window::Spec { limit, window_us }),
        3 => Spec::SlidingCounter(sliding_counter::Spec { limit, window_us }),
        4 => Spec::FixedWindow(fixed_window::Spec { limit, window_us }),
        5 => Spec::Quota(quota::Spec {
            limit,
            unit: match second {
                0 => calendar::Unit::Day,
                1 => calendar::Unit::Week,
                2 => calendar::Unit::Month,
                _ => return None,
            },
            previous_us: third,
            start_us: fourth,
            end_us: fifth,
            next_end_us: sixth,
        }),
        6 => Spec::Concurrency(concurrency::Spec { places: limit, lease_us: second }),
        7 => Spec::Total(total::Spec { limit }),
        _ => return None,
    })
}
