//! The JSON Schema of the policy language, so that editors complete and check.

/// The schema of a policy, as JSON text.
#[must_use]
pub const fn json_schema() -> &'static str {
    include_str!("policy.schema.json")
}
