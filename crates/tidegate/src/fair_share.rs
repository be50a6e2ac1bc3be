//! Shares a bounded number of places among clients, so that none takes what others need.
//!
//! Three quarters of the places are for anyone. The last quarter is for clients that hold less than their
//! share. Without a stated share, that is what each would have if all had the same and one more came. So a
//! client that is alone leaves a quarter free, and many clients can use all places.

use std::collections::HashMap;
use std::hash::Hash;

use crate::identity::ClientNetwork;

/// Who a fair share is counted for: a user, or else an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Client {
    /// A user that is known.
    User(Box<str>),
    /// An address, by the policy's `ipv6_prefix`.
    Network(ClientNetwork),
}

/// The places that are taken, and who holds how many of them. Places without a client, such as those of a
/// proxy that speaks for everybody, have no share.
#[derive(Debug)]
pub struct FairShare<C> {
    max: usize,
    share: Option<usize>,
    in_use: usize,
    held: HashMap<C, usize>,
}

impl<C: Eq + Hash> FairShare<C> {
    /// With this many places.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max, share: None, in_use: 0, held: HashMap::new() }
    }

    /// With this share of each client.
    #[must_use]
    pub fn with_share(self, share: usize) -> Self {
        Self { share: Some(share), ..self }
    }

    /// True if the client may take a further place.
    #[must_use]
    pub fn admits(&self, client: Option<&C>) -> bool {
        let is_within = |client| !self.is_crowded() || self.held_by(client) < self.share();
        self.in_use < self.max && client.is_none_or(is_within)
    }

    /// Takes a place, without asking whether there is one.
    pub fn take(&mut self, client: Option<C>) {
        self.in_use += 1;
        if let Some(client) = client {
            *self.held.entry(client).or_default() += 1;
        }
    }

    /// Gives a place back that was taken for the same client.
    pub fn give_back(&mut self, client: Option<&C>) {
        self.in_use = self.in_use.saturating_sub(1);
        let Some(client) = client else { return };
        match self.held.get_mut(client) {
            Some(held) if *held > 1 => *held -= 1,
            _ => drop(self.held.remove(client)),
        }
    }

    /// True if only the last quarter is left.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.in_use >= self.max - self.max / 4
    }

    /// How many places a client holds.
    #[must_use]
    pub fn held_by(&self, client: &C) -> usize {
        self.held.get(client).copied().unwrap_or(0)
    }

    /// How many places a client may hold in a crowd.
    #[must_use]
    pub fn share(&self) -> usize {
        self.share.unwrap_or_else(|| self.max / (self.held.len() + 1)).max(1)
    }

    /// The clients that hold more than their share.
    pub fn surplus(&self) -> impl Iterator<Item = (&C, usize)> {
        let share = self.share();
        self.held.iter().filter_map(move |(client, held)| {
            held.checked_sub(share).filter(|surplus| *surplus > 0).map(|surplus| (client, surplus))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many places a client gets, one after the other.
    fn take_all(places: &mut FairShare<u8>, client: u8) -> usize {
        let taken = std::iter::repeat_with(|| {
            let admits = places.admits(Some(&client));
            admits.then(|| places.take(Some(client)))
        });
        taken.map_while(|taken| taken).count()
    }

    #[test]
    fn a_client_leaves_a_quarter_to_others_who_get_their_part_of_it() {
        let mut places = FairShare::new(100);
        assert_eq!([1, 2, 3, 4].map(|client| take_all(&mut places, client)), [75, 25, 0, 0]);
        let mut places = FairShare::new(100).with_share(10);
        assert_eq!([1, 2, 3, 4].map(|client| take_all(&mut places, client)), [75, 10, 10, 5]);
        assert_eq!(places.surplus().collect::<Vec<_>>(), [(&1, 65)]);
    }

    #[test]
    fn what_a_client_above_its_share_gives_back_goes_to_others() {
        let mut places = FairShare::new(8);
        assert_eq!([1, 2].map(|client| take_all(&mut places, client)), [6, 2]);
        places.give_back(Some(&1));
        assert!(!places.admits(Some(&1)) && places.admits(Some(&3)));
        places.give_back(Some(&1));
        places.give_back(Some(&2));
        assert!(places.admits(Some(&1)), "no crowd");
    }

    #[test]
    fn few_places_are_not_kept_free_and_everybody_together_has_all() {
        for max in 1..4 {
            assert_eq!(take_all(&mut FairShare::new(max), 1), max);
        }
        let mut places = FairShare::<u8>::new(100);
        (0..100).for_each(|_| places.take(None));
        assert!(!places.admits(None) && !places.admits(Some(&1)));
        places.give_back(None);
        assert!(places.admits(None) && places.admits(Some(&1)));
        assert!(!FairShare::<u8>::new(0).admits(None));
    }
}
