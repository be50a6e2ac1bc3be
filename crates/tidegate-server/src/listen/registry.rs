//! The connections of one listener, and which addresses they come from.
//!
//! Once three quarters of the connections are in use, an address has no more than its share. Its longest
//! idle connections go first; where none is idle, its next connection is not taken. An address that stands
//! for everybody has no share.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tidegate::engine::FairShare;
use tidegate::engine::identity::ClientNetwork;
use tokio::time::Instant;

use super::reaper::{ConnectionEnd, ReaperEntry};

/// The shortest time between two looks at all addresses.
const SURPLUS_CHECK: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Registry {
    pub(super) entries: HashMap<u64, ReaperEntry>,
    by_client: HashMap<ClientNetwork, HashSet<u64>>,
    /// The places of connections. A tunnel keeps its place when it leaves the registry.
    places: FairShare<ClientNetwork>,
    next: u64,
    surplus_checked_at: Option<Instant>,
}

impl Registry {
    /// For this many connections, of which an address has a share.
    pub(super) fn new(connections_max: usize, address_share: usize) -> Self {
        Self {
            entries: HashMap::new(),
            by_client: HashMap::new(),
            places: FairShare::new(connections_max).with_share(address_share),
            next: 0,
            surplus_checked_at: None,
        }
    }

    /// Takes a place for a connection; false if its address has its share already.
    pub(super) fn take_place(&mut self, client: Option<ClientNetwork>) -> bool {
        if self.places.is_crowded() {
            self.end_surplus();
            let share = self.places.share();
            if client.is_some_and(|client| !self.reduce(client, share - 1)) {
                return false;
            }
        }
        self.places.take(client);
        true
    }

    pub(super) fn give_back(&mut self, client: Option<ClientNetwork>) {
        self.places.give_back(client.as_ref());
    }

    /// Adds a connection, and returns its number.
    pub(super) fn add(&mut self, client: Option<ClientNetwork>, entry: ReaperEntry) -> u64 {
        let number = self.next;
        self.next += 1;
        self.entries.insert(number, entry);
        if let Some(client) = client {
            self.by_client.entry(client).or_default().insert(number);
        }
        number
    }

    pub(super) fn remove(&mut self, number: u64, client: Option<ClientNetwork>) {
        self.entries.remove(&number);
        let Some(client) = client else { return };
        if let Some(numbers) = self.by_client.get_mut(&client) {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.by_client.remove(&client);
            }
        }
    }

    /// Ends idle connections of all addresses that have more than their share.
    fn end_surplus(&mut self) {
        if self.surplus_checked_at.is_some_and(|at| at.elapsed() < SURPLUS_CHECK) {
            return;
        }
        let share = self.places.share();
        let clients: Vec<ClientNetwork> = self.places.surplus().map(|(one, _)| *one).collect();
        for client in clients {
            self.reduce(client, share);
        }
        self.surplus_checked_at = Some(Instant::now());
    }

    /// Ends the longest idle connections of an address until it has at most `share`. False if it has too
    /// few idle ones.
    fn reduce(&mut self, client: ClientNetwork, share: usize) -> bool {
        let (mut idle, mut ending) = (Vec::new(), 0);
        for number in self.by_client.get(&client).into_iter().flatten() {
            let Some(entry) = self.entries.get(number) else { continue };
            match entry.is_dropped() {
                true => ending += 1,
                false => idle.extend(entry.idle_since().map(|since| (since, *number))),
            }
        }
        let surplus = self.places.held_by(&client).saturating_sub(ending + share);
        idle.sort_unstable();
        for (_, number) in idle.iter().take(surplus) {
            if let Some(entry) = self.entries.get(number) {
                entry.end(ConnectionEnd::Drop);
            }
        }
        surplus <= idle.len()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::sync::Arc;

    use http::Version;
    use tidegate::engine::identity::client_network;

    use super::*;
    use crate::listen::ConnectionTimeouts;
    use crate::listen::timeouts::ConnectionActivity;

    fn client(address: &str) -> Option<ClientNetwork> {
        Some(client_network(address.parse::<IpAddr>().unwrap(), 64))
    }

    /// Takes a connection, if there is a place for it.
    fn connect(registry: &mut Registry, client: Option<ClientNetwork>) -> Option<u64> {
        let hour = Duration::from_secs(3_600);
        let timeouts = ConnectionTimeouts { head: hour, idle: hour, stalled: hour };
        let activity = ConnectionActivity::new(&timeouts, Arc::default());
        registry.take_place(client).then(|| registry.add(client, ReaperEntry::new(activity).0))
    }

    /// Removes the connections that were told to end, and returns their numbers.
    fn sweep(registry: &mut Registry, client: Option<ClientNetwork>) -> Vec<u64> {
        let dropped = registry.entries.iter().filter(|(_, entry)| entry.is_dropped());
        let mut dropped: Vec<u64> = dropped.map(|(number, _)| *number).collect();
        dropped.sort_unstable();
        for number in &dropped {
            registry.remove(*number, client);
            registry.give_back(client);
        }
        dropped
    }

    #[test]
    fn an_address_has_its_share_in_a_crowd_and_its_longest_idle_connections_go_first() {
        let mut registry = Registry::new(100, 10);
        let (flood, other) = (client("192.0.2.1"), client("192.0.2.2"));
        let idle: Vec<u64> = (0..75).filter_map(|_| connect(&mut registry, flood)).collect();
        assert_eq!((idle.len(), sweep(&mut registry, flood)), (75, vec![]));
        assert!(connect(&mut registry, other).is_some());
        assert_eq!(sweep(&mut registry, flood), idle[..65], "the longest idle, down to the share");
        assert!(connect(&mut registry, flood).is_some(), "no crowd");
    }

    #[test]
    fn one_more_of_an_address_at_its_share_replaces_an_idle_one_or_is_not_taken() {
        let mut registry = Registry::new(8, 2);
        let (flood, everybody) = (client("2001:db8:1:2::1"), None);
        for _ in 0..6 {
            connect(&mut registry, everybody).unwrap();
        }
        let first = connect(&mut registry, flood).unwrap();
        let activity = Arc::clone(registry.entries[&first].activity());
        let request = activity.begin_request(Version::HTTP_11);
        let second = connect(&mut registry, flood).unwrap();
        let third = connect(&mut registry, client("2001:db8:1:2::ffff")).unwrap();
        assert_eq!(sweep(&mut registry, flood), [second], "the first is at work");
        let activity = Arc::clone(registry.entries[&third].activity());
        let other_request = activity.begin_request(Version::HTTP_11);
        assert_eq!(connect(&mut registry, flood), None, "all of them are at work");
        assert!(connect(&mut registry, everybody).is_some());
        drop((request, other_request));
        assert!(connect(&mut registry, flood).is_some());
        assert_eq!(sweep(&mut registry, flood).len(), 1);
    }
}
