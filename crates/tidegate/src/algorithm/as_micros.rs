//! Amounts of saved specs: millionths, and none above the largest.

use serde::de::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

use crate::units::Amount;

pub(crate) fn serialize<S: Serializer>(amount: &Amount, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(amount.micros())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Amount, D::Error> {
    let micros = u64::deserialize(from)?;
    Amount::from_micros(micros).ok_or_else(|| D::Error::custom("found an amount above the largest"))
}
