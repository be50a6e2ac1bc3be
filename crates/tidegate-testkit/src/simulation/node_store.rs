//! A node's connection to the server: first its loans, then the network.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tidegate::clock::{Clock as _, Now};
use tidegate::engine::plan::Plan;
use tidegate::engine::store::{Amendment, AmendmentResults, Answer, Store, StoreError, Tables};
use tidegate_redis::loans::LoanTable;

use super::clock::NodeClock;
use super::network::{Ask, Network, ServerReply, lock, unreachable};

/// A node's connection to the server.
#[derive(Clone, Debug)]
pub(super) struct NodeStore {
    pub(super) node: u32,
    pub(super) network: Arc<Mutex<Network>>,
    pub(super) clock: NodeClock,
    /// The node's loans: a new table after a crash.
    pub(super) loans: Arc<Mutex<Arc<LoanTable>>>,
}

impl NodeStore {
    pub(super) fn loans(&self) -> Arc<LoanTable> {
        Arc::clone(&self.loans.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn crash(&self, nodes: u32) {
        let table = LoanTable::default();
        table.set_nodes(nodes);
        *self.loans.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(table);
    }

    pub(super) fn now_us(&self) -> u64 {
        self.clock.now().steady_us
    }
}

impl Store for NodeStore {
    fn names_keys(&self) -> bool {
        true
    }

    fn try_decide(
        &self,
        plan: &Plan,
        _: Option<&Tables>,
        answer: &mut Answer,
    ) -> Option<Result<(), StoreError>> {
        *answer = self.loans().decide(plan, self.now_us())?;
        Some(Ok(()))
    }

    async fn decide(&self, plan: &Plan) -> Result<Answer, StoreError> {
        let loans = self.loans();
        let mut partial = loans.begin(plan, self.now_us());
        if let Some(answer) = partial.answer {
            return Ok(answer);
        }
        for loan in std::mem::take(&mut partial.requests) {
            lock(&self.network).send(self.node, Ask::Loan(loan));
        }
        let rest = partial.remainder.as_deref().unwrap_or(plan).clone();
        let call = lock(&self.network).send(self.node, Ask::Plan(rest));
        let answered = CallFuture { network: &self.network, call }.await;
        loans.finish(plan, &partial, answered, self.now_us())
    }

    /// Corrections take no time: they happen at once, or not at all.
    async fn amend(
        &self,
        _: Now,
        amendments: &[Amendment],
    ) -> Result<AmendmentResults, StoreError> {
        let mut network = lock(&self.network);
        if network.cut_off().contains(&self.node) {
            return Err(unreachable());
        }
        let now_us = network.time.now_us();
        network.server.amend(now_us, amendments)
    }

    fn announce(&self, _families: &[u64]) {}
}

/// Waits for the end of a call. The world polls the future when the call has ended.
struct CallFuture<'n> {
    network: &'n Mutex<Network>,
    call: usize,
}

impl Future for CallFuture<'_> {
    type Output = Result<Answer, StoreError>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        match lock(self.network).outcome(self.call) {
            Some(Ok(ServerReply::Answer(answer))) => Poll::Ready(Ok(answer.clone())),
            // No request waits for a loan here.
            Some(Ok(ServerReply::Lent(_))) => Poll::Ready(Err(unreachable())),
            Some(Err(error)) => Poll::Ready(Err(error.clone())),
            None => Poll::Pending,
        }
    }
}
