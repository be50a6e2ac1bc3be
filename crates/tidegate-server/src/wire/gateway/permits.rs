//! Permits to use a connection to the upstream, shared fairly among clients.
//!
//! Three quarters are for anyone, the last quarter is for clients that hold less than their share. Clients
//! that wait get a permit in turn, and each client's requests in the order in which they came. So requests
//! that a client never finishes hold up its own next ones, and nobody else's.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::engine::{Client, FairShare};
use tokio::sync::oneshot;

/// All permits. Clones share them.
#[derive(Clone)]
pub(super) struct Permits(Arc<Mutex<PermitState>>);

struct PermitState {
    places: FairShare<Client>,
    lines: HashMap<Option<Client>, Line>,
    /// The clients with a line, the next one first.
    turns: VecDeque<Option<Client>>,
    next: u64,
}

/// The requests of one client that wait, by arrival.
type Line = BTreeMap<u64, oneshot::Sender<Permit>>;

/// The right to one open connection, until it is dropped.
pub(super) struct Permit {
    permits: Permits,
    client: Option<Client>,
}

/// A request in a line. Dropping it leaves the line.
struct Waiting<'p> {
    permits: &'p Permits,
    client: Option<Client>,
    number: u64,
}

impl Permits {
    pub(super) fn new(max: usize) -> Self {
        let (lines, turns) = (HashMap::new(), VecDeque::new());
        let places = FairShare::new(max);
        Self(Arc::new(Mutex::new(PermitState { places, lines, turns, next: 0 })))
    }

    /// Waits for a permit. Requests without a client have no share.
    pub(super) async fn acquire(&self, client: Option<Client>) -> Permit {
        loop {
            let (waiting, permit) = match self.take_or_wait(client.clone()) {
                Ok(permit) => return permit,
                Err(waiting) => waiting,
            };
            let granted = permit.await;
            drop(waiting);
            // The sender is in the line until a permit is sent, so this cannot fail.
            if let Ok(permit) = granted {
                return permit;
            }
        }
    }

    fn take_or_wait(
        &self,
        client: Option<Client>,
    ) -> Result<Permit, (Waiting<'_>, oneshot::Receiver<Permit>)> {
        let mut state = self.lock();
        if !state.lines.contains_key(&client) && state.places.admits(client.as_ref()) {
            state.places.take(client.clone());
            return Ok(Permit { permits: self.clone(), client });
        }
        let number = state.next;
        state.next += 1;
        let (sender, receiver) = oneshot::channel();
        if !state.lines.contains_key(&client) {
            state.turns.push_back(client.clone());
        }
        state.lines.entry(client.clone()).or_default().insert(number, sender);
        Err((Waiting { permits: self, client, number }, receiver))
    }

    /// Gives a permit to each client whose turn it is, while there are some.
    fn grant(&self) {
        while let Some((sender, permit)) = self.next_grant() {
            // A request that has just left drops its permit, which is given to the next.
            let _ = sender.send(permit);
        }
    }

    fn next_grant(&self) -> Option<(oneshot::Sender<Permit>, Permit)> {
        let mut state = self.lock();
        let PermitState { places, lines, turns, .. } = &mut *state;
        let turn = turns.iter().position(|client| places.admits(client.as_ref()))?;
        let client = turns.remove(turn)?;
        let line = lines.get_mut(&client)?;
        let (_, sender) = line.pop_first()?;
        match line.is_empty() {
            true => drop(lines.remove(&client)),
            false => turns.push_back(client.clone()),
        }
        places.take(client.clone());
        Some((sender, Permit { permits: self.clone(), client }))
    }

    fn lock(&self) -> MutexGuard<'_, PermitState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.lock().places.give_back(self.client.as_ref());
        self.permits.grant();
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let PermitState { lines, turns, .. } = &mut *self.permits.lock();
        let Some(line) = lines.get_mut(&self.client) else { return };
        line.remove(&self.number);
        if line.is_empty() {
            lines.remove(&self.client);
            turns.retain(|client| *client != self.client);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn client(name: &str) -> Option<Client> {
        Some(Client::User(name.into()))
    }

    /// The permits that a client gets without waiting.
    fn take(permits: &Permits, name: &str, count: usize) -> Vec<Permit> {
        (0..count).filter_map(|_| permits.acquire(client(name)).now_or_never()).collect()
    }

    #[test]
    fn a_client_that_holds_all_it_can_leaves_some_for_others() {
        let permits = Permits::new(100);
        let flood = take(&permits, "flood", 1_000);
        assert_eq!(flood.len(), 75);
        assert_eq!(take(&permits, "other", 1).len(), 1);
        assert_eq!(permits.lock().lines.len(), 0, "who left does not wait");
        assert_eq!(permits.lock().turns.len(), 0);
        drop(flood);
        assert_eq!(take(&permits, "other", 75).len(), 75);
    }

    #[tokio::test]
    async fn clients_that_wait_take_turns() {
        let permits = Permits::new(1);
        let first = permits.acquire(client("a")).await;
        let (sender, mut served) = tokio::sync::mpsc::unbounded_channel();
        for name in ["a", "a", "a", "b", "c", "b"] {
            let (permits, sender) = (permits.clone(), sender.clone());
            tokio::spawn(async move {
                let permit = permits.acquire(client(name)).await;
                sender.send(name).unwrap();
                tokio::task::yield_now().await;
                drop(permit);
            });
            tokio::task::yield_now().await;
        }
        drop((first, sender));
        let mut order = Vec::new();
        while let Some(name) = served.recv().await {
            order.push(name);
        }
        assert_eq!(order, ["a", "b", "c", "a", "b", "a"]);
    }

    #[test]
    fn requests_without_a_client_have_all_permits_and_wait_in_one_line() {
        let permits = Permits::new(8);
        let held: Vec<Permit> =
            (0..9).filter_map(|_| permits.acquire(None).now_or_never()).collect();
        assert_eq!(held.len(), 8);
        assert!(take(&permits, "a", 1).is_empty());
        drop(held);
        assert_eq!(take(&permits, "a", 1).len(), 1);
    }
}
