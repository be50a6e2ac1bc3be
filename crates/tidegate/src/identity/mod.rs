//! The identity of a request: address, user, tier, attributes.
//!
//! Only hops that the policy trusts may speak for a client, and only through the one header that it
//! names; everything else that a request says about its origin is ignored. Claims of a token count
//! from any peer, because the surface has verified them.

mod address;
pub(crate) mod attribute;
mod body;
mod claims;
mod cookie;
mod form;
mod forwarding;
mod identify;
mod json;
mod media_type;
mod multipart;
mod names;
mod unreadable;

pub use address::{ClientNetwork, Networks, canonical, client_network};
pub use claims::{Claims, ClaimsError};
pub use forwarding::{ForwardingHeader, client_address};
pub(crate) use identify::{Identity, identify};
pub(crate) use json::tokens;
pub use unreadable::Unreadable;
