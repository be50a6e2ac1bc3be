//! The nodes, the store and the limits of a deployment at work.

use std::collections::HashMap;

use super::bucket::Bucket;
use super::figures::{ALL, CLIENT, CLIENTS, KNOWN_US_MAX, NODES, TENANT, TENANTS, WARM_UP_SECONDS};
use super::node_loan::NodeLoan;
use super::{Setup, Traffic};

/// Of a client, of its tenant, of all.
const LIMITS: usize = 3;

/// The counts after the warm-up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests.
    pub requests: u64,
    /// Admitted requests.
    pub admitted: u64,
    /// Requests decided without asking the store.
    pub on_node: u64,
    /// Calls of the store, loans included.
    pub asks: u64,
    /// The limits in these calls.
    pub levels: u64,
    /// The limits that were not alone in their call.
    pub together: u64,
}

/// A deployment.
#[derive(Debug)]
pub struct World {
    setup: Setup,
    /// By limit: the buckets of all subjects.
    store: [Vec<Bucket>; LIMITS],
    /// By limit: each node's loan from each bucket; of clients, only that of the node that serves them.
    held: [Vec<NodeLoan>; LIMITS],
    /// The time until which a node knows that a client is refused, and the clients that ever were.
    known: HashMap<(u32, u32), u64>,
    refused: Vec<bool>,
    counted: Counts,
}

impl World {
    /// A deployment that has run for long: clients that send more than their limit have used up the
    /// burst.
    #[must_use]
    pub fn new(setup: Setup, traffic: &Traffic) -> Self {
        let subjects = [CLIENTS, TENANTS, 1].map(|count| usize::try_from(count).unwrap_or(0));
        let nodes = usize::try_from(NODES).unwrap_or(1);
        let buckets = |limit, count| vec![Bucket::new(limit); count];
        let client = |sent: u64| {
            if sent > CLIENT.0 { Bucket::empty(CLIENT) } else { Bucket::new(CLIENT) }
        };
        Self {
            setup,
            store: [
                traffic.per_s().into_iter().map(client).collect(),
                buckets(TENANT, subjects[1]),
                buckets(ALL, subjects[2]),
            ],
            held: [
                vec![NodeLoan::default(); subjects[0]],
                vec![NodeLoan::default(); subjects[1] * nodes],
                vec![NodeLoan::default(); subjects[2] * nodes],
            ],
            known: HashMap::new(),
            refused: vec![false; subjects[0]],
            counted: Counts::default(),
        }
    }

    /// Decides all requests. Returns the counts after the warm-up.
    #[must_use]
    pub fn run(mut self, traffic: &Traffic) -> Counts {
        let mut warm = Counts::default();
        for (place, (now_us, client)) in (0..).zip(traffic.requests()) {
            if now_us == WARM_UP_SECONDS * 1_000_000 {
                warm = self.counted;
            }
            let node = if self.setup.routes_clients { client % NODES } else { place % NODES };
            self.request(node, client, now_us);
        }
        self.counted.since(&warm)
    }

    fn request(&mut self, node: u32, client: u32, now_us: u64) {
        self.counted.requests += 1;
        let places = Places::new(node, client);
        let refused = self.refused[places.store[0]];
        if refused && self.known.get(&(node, client)).is_some_and(|until_us| now_us < *until_us) {
            self.counted.on_node += 1;
            return;
        }
        let leased =
            [self.setup.leases_clients, self.setup.leases_shared, self.setup.leases_shared];
        let mut here = [false; LIMITS];
        for limit in 0..LIMITS {
            here[limit] = leased[limit] && self.held[limit][places.held[limit]].has(now_us);
        }
        let wait_us = self.ask(&places, here, now_us);
        match wait_us {
            0 => {
                self.counted.admitted += 1;
                self.charge(&places, here, leased, now_us);
            }
            wait_us => {
                let until_us = now_us + wait_us.min(KNOWN_US_MAX);
                self.known.insert((node, client), until_us);
                self.refused[places.store[0]] = true;
            }
        }
        for limit in (0..LIMITS).filter(|limit| leased[*limit]) {
            self.renew(limit, &places, now_us);
        }
    }

    /// Asks the store about the limits that no loan covers. Returns the wait, zero for an admission.
    fn ask(&mut self, places: &Places, here: [bool; LIMITS], now_us: u64) -> u64 {
        let asked = here.iter().filter(|here| !**here).count();
        if asked == 0 {
            self.counted.on_node += 1;
            return 0;
        }
        self.counted.asks += 1;
        let levels = u64::try_from(asked).unwrap_or(0);
        self.counted.levels += levels;
        if levels > 1 {
            self.counted.together += levels;
        }
        let mut wait_us = 0;
        for limit in (0..LIMITS).filter(|limit| !here[*limit]) {
            wait_us = wait_us.max(self.store[limit][places.store[limit]].wait_us(now_us));
        }
        wait_us
    }

    fn charge(
        &mut self,
        places: &Places,
        here: [bool; LIMITS],
        leased: [bool; LIMITS],
        now_us: u64,
    ) {
        for limit in 0..LIMITS {
            let bucket = &mut self.store[limit][places.store[limit]];
            let held = &mut self.held[limit][places.held[limit]];
            if here[limit] {
                held.spend(bucket, now_us);
            } else {
                bucket.take();
                if leased[limit] {
                    held.note(now_us);
                }
            }
        }
    }

    fn renew(&mut self, limit: usize, places: &Places, now_us: u64) {
        let held = &mut self.held[limit][places.held[limit]];
        let bucket = &mut self.store[limit][places.store[limit]];
        if held.is_due(now_us) && held.borrow(bucket, now_us) {
            self.counted.asks += 1;
            self.counted.levels += 1;
        }
    }
}

impl Counts {
    fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            admitted: self.admitted - before.admitted,
            on_node: self.on_node - before.on_node,
            asks: self.asks - before.asks,
            levels: self.levels - before.levels,
            together: self.together - before.together,
        }
    }
}

/// The indices of a request's states, by limit.
struct Places {
    store: [usize; LIMITS],
    held: [usize; LIMITS],
}

impl Places {
    fn new(node: u32, client: u32) -> Self {
        let tenant = client % TENANTS;
        let place = |number: u32| usize::try_from(number).unwrap_or(0);
        Self {
            store: [place(client), place(tenant), 0],
            held: [place(client), place(node * TENANTS + tenant), place(node)],
        }
    }
}
