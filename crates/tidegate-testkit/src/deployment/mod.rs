//! The load of a large deployment on its store: nodes, clients, loans and known refusals in simulated
//! time, with the measured cost of each call.
//!
//! Only work is counted: calls are answered at once. The [simulation](crate::simulation) covers a
//! store that is late or lost. `docs/a-million-requests-a-second.md` shows the output of [`table`].

mod bucket;
mod cost;
pub mod figures;
mod node_loan;
mod traffic;
mod world;

use std::fmt::Write as _;

pub use cost::Cost;
pub use traffic::Traffic;
pub use world::{Counts, World};

/// One setup of the deployment.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Its name in the table.
    pub name: &'static str,
    /// Whether the limits that all clients of a tenant, and all tenants, share are leased.
    pub leases_shared: bool,
    /// Whether the limit of each client is leased too.
    pub leases_clients: bool,
    /// Whether the load balancer sends all requests of a client to one node.
    pub routes_clients: bool,
}

/// The compared setups. Each adds one thing to the one before.
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

/// Runs all setups on the same requests.
#[must_use]
pub fn compared() -> Vec<(Setup, Counts)> {
    let traffic = Traffic::new(figures::SEED);
    SETUPS.iter().map(|setup| (*setup, World::new(*setup, &traffic).run(&traffic))).collect()
}

/// The table of the document.
#[must_use]
pub fn table(compared: &[(Setup, Counts)]) -> String {
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
