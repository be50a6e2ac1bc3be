//! Bodies of the admin API, as types for the OpenAPI document alone.

#![expect(
    dead_code,
    reason = "no value of these types exists: they describe JSON that is read and written by hand"
)]

use std::collections::BTreeMap;

use serde_json::{Value, json};
use utoipa::ToSchema;

use super::marks::MarkView;

/// A key of the store. One that cannot be read has a meaning only.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Key {
    /// The key's name.
    key: String,
    /// The policy, the limit or the penalty of the key, if they are in force.
    policy: Option<String>,
    limit: Option<String>,
    penalty: Option<String>,
    algorithm: Option<String>,
    spec: Option<String>,
    capacity: Option<f64>,
    used: Option<f64>,
    available: Option<f64>,
    /// When nothing of it counts any more; null for never.
    reset_ms: Option<u64>,
    /// When the key goes by itself; null for never.
    expires_ms: Option<u64>,
    /// The same in words.
    meaning: String,
    /// Each pace that charged the key, if there are several.
    paces: Option<Vec<Pace>>,
}

/// The state of a key at one rate or window.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pace {
    algorithm: String,
    spec: String,
    capacity: f64,
    used: f64,
    available: f64,
    reset_ms: Option<u64>,
}

/// A page of bans.
#[derive(ToSchema)]
pub(crate) struct BanList {
    bans: Vec<MarkView<'static>>,
    /// The cursor of the next page; null on the last.
    #[schema(required)]
    cursor: Option<String>,
}

/// A page of flags.
#[derive(ToSchema)]
pub(crate) struct FlagList {
    flags: Vec<MarkView<'static>>,
    /// The cursor of the next page; null on the last.
    #[schema(required)]
    cursor: Option<String>,
}

/// A ban that an operator sets.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewBan {
    /// The parts of the subject, such as `user`, `ip`, `network` or an attribute.
    key: BTreeMap<String, String>,
    /// How long it lasts, such as `1h`.
    r#for: Option<String>,
    /// True for a ban without an end.
    permanent: Option<bool>,
    reason: Option<String>,
    /// The policy that it holds in; all policies without it.
    policy: Option<String>,
}

/// A flag that an operator sets.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewFlag {
    /// The parts of the subject, such as `user`, `ip`, `network` or an attribute.
    key: BTreeMap<String, String>,
    flag: String,
    /// How long it lasts, such as `1h`; without an end if it is left out.
    r#for: Option<String>,
    reason: Option<String>,
    /// The policy that it holds in; all policies without it.
    policy: Option<String>,
}

/// An example of a ban.
pub(crate) fn new_ban() -> Value {
    json!({ "key": { "user": "u1" }, "for": "1h", "reason": "scrapes the catalogue" })
}

/// An example of a flag.
pub(crate) fn new_flag() -> Value {
    json!({ "key": { "user": "u1" }, "flag": "review", "for": "7d", "reason": "odd orders" })
}
