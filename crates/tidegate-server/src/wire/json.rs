//! Values as JSON answers.

use std::time::Duration;

use http::Response;
use serde::Serialize;
use serde::ser::Serializer;
use serde_json::value::RawValue;
use tidegate::Amount;

use crate::body::Body;
use crate::respond;

/// A value as JSON text.
pub(crate) fn to_json(value: &impl Serialize) -> String {
    // Strings and numbers into memory: neither can fail.
    serde_json::to_string(value).unwrap_or_default()
}

/// A value as a JSON answer.
pub(crate) fn json_response(value: &impl Serialize) -> Response<Body> {
    respond::json(to_json(value))
}

/// An exact decimal as a JSON number.
pub(crate) struct JsonNumber(pub(crate) Amount);

impl Serialize for JsonNumber {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.0.whole_up() == self.0 {
            return serializer.serialize_u64(self.0.whole());
        }
        let decimal = RawValue::from_string(self.0.to_string());
        decimal.map_err(serde::ser::Error::custom)?.serialize(serializer)
    }
}

/// Milliseconds, rounded up.
pub(crate) fn millis_up(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1_000)).unwrap_or(u64::MAX)
}
