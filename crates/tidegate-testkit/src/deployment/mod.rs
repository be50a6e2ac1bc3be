//! How much a large deployment asks of its store: nodes, clients, leases and known refusals in simulated
//! time, with what the store was measured to need for each ask.
//!
//! It counts work and nothing else: asks are answered at once. What a store that is late or lost does to
//! the limits is the [simulation](crate::simulation)'s to say. `docs/a-million-requests-a-second.md`
//! shows what [`table`] prints.

mod bucket;
mod cost;
pub mod figures;
mod held;
mod traffic;
mod world;

use std::fmt::Write as _;

pub use cost::Cost;
pub use traffic::Traffic;
pub use world::{KeyUsage, World};

/// One way to run it.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// What it is called in the table.
    pub name: &'static str,
    /// Whether the limits that all clients of a tenant, and all tenants, share are leased.
    pub leases_shared: bool,
    /// Whether the limit of each client is leased too.
    pub leases_clients: bool,
    /// Whether the load balancer sends all requests of a client to one node.
    pub routes_clients: bool,
}

/// The ways that are compared, each with one thing more than the one before.
pub const SETUPS: [Setup; 4] = [
    Setup {
        name: "everything exact",
        leases_shared: false,
        leases_clients: false,
        routes_clients: false,
    },
    Setup {
        name: "tenant and all leased",
        leases_shared: true,
        leases_clients: false,
        routes_clients: false,
    },
    Setup {
        name: "and clients routed",
        leases_shared: true,
        leases_clients: false,
        routes_clients: true,
    },
    Setup {
        name: "and clients leased",
        leases_shared: true,
        leases_clients: true,
        routes_clients: true,
    },
];

/// What is counted in each of the ways, for the same requests.
#[must_use]
pub fn compared() -> Vec<(Setup, KeyUsage)> {
    let traffic = Traffic::new(figures::SEED);
    SETUPS.iter().map(|setup| (*setup, World::new(*setup, &traffic).run(&traffic))).collect()
}

/// The table of the document.
#[must_use]
pub fn table(compared: &[(Setup, KeyUsage)]) -> String {
    let mut table = String::from(
        "| | answered on the node | asks a second | limits an ask | single: cores | servers | cluster: cores | primaries |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for (setup, counted) in compared {
        let cost = Cost::of(counted);
        // Writing to a String cannot fail.
        let _ = writeln!(
            table,
            "| {} | {} % | {} | {} | {} | {} | {} | {} |",
            setup.name,
            counted.on_node * 100 / counted.requests.max(1),
            thousands(cost.asks_per_s),
            tenths(counted.levels * 10 / counted.asks.max(1)),
            tenths(cost.single_tenths),
            cost.servers,
            tenths(cost.cluster_tenths),
            cost.primaries,
        );
    }
    table
}

fn tenths(number: u64) -> String {
    format!("{}.{}", number / 10, number % 10)
}

/// Rounded to thousands: the rest is chance.
fn thousands(number: u64) -> String {
    let rounded = (number + 500) / 1_000;
    if rounded >= 1_000 {
        format!("{},{:03},000", rounded / 1_000, rounded % 1_000)
    } else {
        format!("{rounded},000")
    }
}
