//! How requests look for marks: first whether there can be one, which nearly all of those whom none is
//! of are told without a lock, and only then for the mark itself.

use std::net::IpAddr;

use super::shapes::Used;
use super::subject::network_key;
use super::table::Entry;
use super::trace::{Sought, Traced};
use super::{Mark, Marks};
use crate::clock::Now;
use crate::context::Context;
use crate::identity::ClientNetwork;

impl Marks {
    /// Of what shapes there are bans.
    #[inline]
    pub(crate) fn bans(&self) -> Used {
        self.shapes.used()
    }

    /// The mark of a request.
    pub(crate) fn find(&self, sought: &Sought, context: &Context<'_>, now: Now) -> Option<Mark> {
        let id = self.may_have(sought, context).then(|| sought.key(context)).flatten()?;
        self.get(sought.kind, id, now)
    }

    /// The bans of networks that an address is in.
    pub(crate) fn find_networks(
        &self,
        sought: &Sought,
        ip: IpAddr,
        now: Now,
    ) -> impl Iterator<Item = Mark> {
        let prefixes =
            self.shapes.prefixes(ip).filter(move |bits| self.may_have_in(sought, ip, *bits));
        let id = move |bits| network_key(sought.prefix, ip, bits);
        prefixes.filter_map(move |bits| self.get(sought.kind, id(bits), now))
    }

    /// Whether there can be a mark of a request.
    pub(crate) fn may_have(&self, sought: &Sought, context: &Context<'_>) -> bool {
        match self.tracer.of_request(sought, context) {
            Traced::Is(trace) => self.filter(sought.kind).may_have(trace),
            Traced::Nobody => false,
            Traced::Unknown => true,
        }
    }

    /// Whether there can be a ban of a network that an address is in.
    pub(crate) fn may_have_network(&self, sought: &Sought, ip: IpAddr) -> bool {
        self.shapes.prefixes(ip).any(|bits| self.may_have_in(sought, ip, bits))
    }

    fn may_have_in(&self, sought: &Sought, ip: IpAddr, bits: u8) -> bool {
        let network = ClientNetwork::of_network(ip, bits);
        self.filter(sought.kind).may_have(self.tracer.of_network(sought, &network))
    }

    /// A factor that behaviour has earned, and since when, in steady time.
    pub(crate) fn factor(
        &self,
        sought: &Sought,
        context: &Context<'_>,
        now: Now,
    ) -> Option<(u64, u64)> {
        if self.count(sought.kind) == 0 || !self.may_have(sought, context) {
            return None;
        }
        let read = |entry: &Entry| entry.factor_ppm.map(|ppm| (ppm, entry.since_us));
        self.table(sought.kind).get(sought.key(context)?, now.steady_us, read).flatten()
    }
}
