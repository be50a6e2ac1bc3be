//! What listeners speak.

pub(crate) mod gateway;
