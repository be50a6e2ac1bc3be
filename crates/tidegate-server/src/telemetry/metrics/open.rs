//! What is open or waiting right now.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Metrics;
use super::text::{Kind, Page};

/// Which listener a connection came in by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listener {
    /// The reverse proxy.
    Gateway,
    /// The decision API.
    Api,
    /// The admin listener.
    Admin,
    /// The Envoy rate limit service.
    Grpc,
}

impl Listener {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Gateway, Self::Api, Self::Admin, Self::Grpc];

    /// Its name in metrics and on standard output.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Api => "api",
            Self::Admin => "admin",
            Self::Grpc => "grpc",
        }
    }
}

/// How much is open.
#[derive(Debug, Default)]
pub(super) struct Open {
    connections: [AtomicU64; Listener::ALL.len()],
    waiting: AtomicU64,
}

impl Open {
    pub(super) fn write(&self, page: &mut Page) {
        let name = "tidegate_open_connections";
        page.family(name, Kind::Gauge, "Open connections by listener.");
        for (listener, open) in Listener::ALL.iter().zip(&self.connections) {
            page.sample(name, &[("listener", listener.name())], open.load(Ordering::Relaxed));
        }
        let help = "Requests that wait for their turn.";
        let waiting = self.waiting.load(Ordering::Relaxed);
        page.single("tidegate_waiting_requests", Kind::Gauge, help, waiting);
    }
}

/// Something that counts as open until it is dropped.
#[derive(Debug)]
pub struct Held {
    metrics: Arc<Metrics>,
    connection: Option<Listener>,
}

impl Held {
    pub(super) fn connection(metrics: Arc<Metrics>, listener: Listener) -> Self {
        Self::counted(metrics, Some(listener))
    }

    pub(super) fn waiting(metrics: Arc<Metrics>) -> Self {
        Self::counted(metrics, None)
    }

    fn counted(metrics: Arc<Metrics>, connection: Option<Listener>) -> Self {
        let held = Self { metrics, connection };
        held.gauge().fetch_add(1, Ordering::Relaxed);
        held
    }

    fn gauge(&self) -> &AtomicU64 {
        let open = &self.metrics.open;
        self.connection.map_or(&open.waiting, |listener| &open.connections[listener as usize])
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.gauge().fetch_sub(1, Ordering::Relaxed);
    }
}
