//! A server of a store, and the way to it.

use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::sending::Sent;
use super::shard::Shard;
use crate::batch::{Batch, Unanswered};
use crate::codec::Told;
use crate::config::Server;
use crate::connection::{Failure, Reason};
use crate::health::ShardHealth;

/// A server, and the way to it.
pub(crate) struct Member {
    pub(crate) shard: Arc<Shard>,
    server: Option<Server>,
    batch: Batch<Shard>,
    /// What goes on in the background, and ends with this.
    _tasks: JoinSet<()>,
}

impl Member {
    pub(super) fn start(shard: Shard, server: Option<Server>) -> Arc<Self> {
        let shard = Arc::new(shard);
        let batch = Batch::start(Arc::clone(&shard), shard.common.timeout);
        let mut tasks = JoinSet::new();
        tasks.spawn(Arc::clone(&shard).keep_probing());
        Arc::new(Self { shard, server, batch, _tasks: tasks })
    }

    /// Where it is, in a cluster.
    pub(super) fn server(&self) -> Option<&Server> {
        self.server.as_ref()
    }

    pub(super) fn is(&self, server: &Server) -> bool {
        self.server.as_ref() == Some(server)
    }

    pub(super) fn health(&self) -> ShardHealth {
        self.shard.health(self.batch.queued())
    }

    /// Asks, together with all others who ask now.
    pub(super) async fn ask(&self, sent: Sent, deadline: Instant) -> Result<Told, Failure> {
        if !self.shard.asks() {
            return Err(self.shard.open());
        }
        let told = self.batch.ask(sent, deadline).await;
        told.unwrap_or_else(|unanswered| Err(unanswered.into()))
    }
}

impl From<Unanswered> for Failure {
    fn from(unanswered: Unanswered) -> Self {
        match unanswered {
            Unanswered::Full => Self::new(Reason::Overload, true, "too many requests wait for it"),
            Unanswered::Late => Self::timeout(),
            Unanswered::Lost => Self::new(Reason::Connection, true, "the call was not answered"),
        }
    }
}
