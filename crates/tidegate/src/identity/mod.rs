//! Who sent the request? So far: the client's address.
//!
//! Only hops that the policy trusts may speak for a client, and only through the one header that it
//! names; everything else that a request claims about its origin is ignored.

mod address;
mod forwarding;

pub use address::{NetworkError, Networks, Subject, canonical, subject};
pub use forwarding::{ForwardingHeader, client_address};
