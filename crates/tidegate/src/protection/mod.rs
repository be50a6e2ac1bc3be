//! Protection: events, the ladders that they climb, and the marks that they leave.

pub(crate) mod bans;
pub(crate) mod counts;
pub(crate) mod events;
pub(crate) mod factors;
pub(crate) mod guard;
pub mod marks;
pub(crate) mod penalties;
pub(crate) mod steps;
