//! A server of the store with its batcher and its prober.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::send::RoutedCommand;
use super::shard::Shard;
use crate::batch::{BatchError, Batcher};
use crate::codec::Response;
use crate::config::Server;
use crate::connection::{Failure, Reason};
use crate::health::ShardHealth;

/// A server with its batcher and its prober, which both hold the shard: so they are not part of it.
pub(crate) struct ShardHandle {
    pub(crate) shard: Arc<Shard>,
    /// Where the server is; `None` where there is only one.
    pub(super) server: Option<Server>,
    batcher: Batcher<Shard>,
    /// The prober, which ends with the handle.
    _tasks: JoinSet<()>,
}

impl ShardHandle {
    pub(super) fn start(shard: Shard, server: Option<Server>) -> Arc<Self> {
        let shard = Arc::new(shard);
        let batcher = Batcher::start(Arc::clone(&shard), shard.deployment.timeout);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shard).keep_probing());
        Arc::new(Self { shard, server, batcher, _tasks: tasks })
    }

    pub(super) fn is_at(&self, server: &Server) -> bool {
        self.server.as_ref() == Some(server)
    }

    pub(super) fn health(&self) -> ShardHealth {
        self.shard.health(self.batcher.queued())
    }

    /// Sends a command in the next batch.
    pub(super) async fn send(
        &self,
        command: RoutedCommand,
        deadline: Instant,
    ) -> Result<Response, Failure> {
        if !self.shard.allows_calls() {
            return Err(self.shard.open_failure());
        }
        let response = self.batcher.send(command, deadline).await;
        response.unwrap_or_else(|error| Err(error.into()))
    }
}

impl From<BatchError> for Failure {
    fn from(error: BatchError) -> Self {
        match error {
            BatchError::Full => Self::new(Reason::Overload, true, "too many requests wait for it"),
            BatchError::Late => Self::timeout(),
            BatchError::Lost => Self::new(Reason::Connection, true, "the call was not answered"),
        }
    }
}
