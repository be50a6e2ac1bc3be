//! Who sent the request: address, user, tier, attributes.
//!
//! Only hops that the policy trusts may speak for a client, and only through the one header that it
//! names; everything else that a request claims about its origin is ignored.

mod address;
pub(crate) mod attribute;
mod forwarding;
mod identify;

pub use address::{NetworkError, Networks, Subject, canonical, subject};
pub use forwarding::{ForwardingHeader, client_address};
pub(crate) use identify::{Identity, identify};
