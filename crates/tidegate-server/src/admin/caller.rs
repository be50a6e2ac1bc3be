//! Who changes something on the admin listener, as the log tells it.

use std::net::IpAddr;

use crate::tokens::Holder;

/// Whoever calls.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Whose token it has, where tokens are asked for.
    pub(crate) holder: Option<Holder>,
    /// From where.
    pub(crate) peer: IpAddr,
}

impl Caller {
    /// The name that its token was given to; without a file of tokens nobody has one.
    pub(crate) fn name(&self) -> &str {
        self.holder.as_ref().map_or("anybody", |holder| &holder.name)
    }

    /// What it may do: without a file of tokens everybody is an operator.
    pub(crate) fn role(&self) -> &'static str {
        self.holder.as_ref().map_or("operator", |holder| holder.role.name())
    }
}
