//! Leases on the shared store: borrows in the background, and gives back what is not needed.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use tidegate::clock::SystemClock;
use tidegate::plan::Plan;
use tidegate::store::{Amendment, Answer};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::health::LeaseHealth;
use super::loan::{Lent, Loan};
use super::spending::Begun;
use super::table::Table;
use crate::codec::{Ask, Told};
use crate::store::RedisStore;

/// How often it is looked for what nobody needs any more.
const SWEEP_EVERY: Duration = Duration::from_millis(250);
/// How many loans may be under way at once; more wait for the next.
const LOANS_MAX: usize = 1024;

const TOO_SMALL: &str =
    "a leased limit has a burst of less than 4 for each node: it is asked exactly";

/// What this node has borrowed, and the clock that it goes by.
pub(crate) struct Leases {
    table: Table,
    clock: SystemClock,
    /// It is time to borrow something.
    due: Notify,
}

impl Leases {
    pub(crate) fn new(nodes: u32) -> Self {
        let table = Table::new();
        table.set_nodes(nodes);
        Self { table, clock: SystemClock::new(), due: Notify::new() }
    }

    /// Decides a plan without the store, if leases cover all of it.
    pub(crate) fn at_once(&self, plan: &Plan) -> Option<Answer> {
        if !plan.levels.iter().any(|level| level.leased) {
            return None;
        }
        let answer = self.table.at_once(plan, self.clock.steady_us());
        self.wake();
        answer
    }

    /// Begins to decide a plan: what leases cover of it is spent.
    pub(crate) fn begin(&self, plan: &Plan) -> Begun {
        let begun = self.table.begin(plan, self.clock.steady_us());
        self.wake();
        begun
    }

    /// Ends it with what the store said to the rest.
    pub(crate) fn finish<E>(
        &self,
        plan: &Plan,
        begun: &Begun,
        answered: Result<Answer, E>,
    ) -> Result<Answer, E> {
        self.table.finish(plan, begun, answered, self.clock.steady_us())
    }

    /// Whether a correction is of something that was spent here.
    pub(crate) fn could_amend(&self, amendment: &Amendment) -> bool {
        amendment.level.leased && self.table.could_amend(amendment, self.clock.steady_us())
    }

    /// Makes a correction, if it is of something spent here; whether it was.
    pub(crate) fn amend(&self, amendment: &Amendment) -> bool {
        amendment.level.leased && self.table.amend(amendment, self.clock.steady_us())
    }

    pub(crate) fn health(&self) -> LeaseHealth {
        self.table.health()
    }

    /// Tells the store of a loan, once, and the table what it said.
    pub(crate) async fn ask(&self, store: &RedisStore, loan: Loan) {
        let told = store.ask(|| Ask::Lend(loan.clone())).await;
        let lent: Option<Lent> = match told {
            Ok(Told::Lent(lent)) => Some(lent),
            _ => None,
        };
        self.table.lent(&loan, lent.as_ref(), self.clock.steady_us());
    }

    /// Tells the store of a loan before anything that is asked after this call, without waiting for
    /// what it says.
    pub(crate) fn tell(self: &Arc<Self>, store: &RedisStore, loan: Loan) {
        let (this, store) = (Arc::clone(self), store.clone());
        let mut asking = Box::pin(async move { this.ask(&store, loan).await });
        // It takes its place in the queue when it is first looked at.
        let looked = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        if looked.is_pending() {
            tokio::spawn(asking);
        }
    }

    /// Gives everything back.
    pub(crate) async fn close(self: &Arc<Self>, store: &RedisStore) {
        self.send(self.table.close(self.clock.steady_us()), store).await;
    }

    /// Borrows and gives back, for as long as there is a store.
    pub(crate) async fn keep(self: Arc<Self>, store: impl Fn() -> Option<RedisStore>) {
        let mut ticks = interval(SWEEP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut under_way = JoinSet::new();
        let mut sweep_at = Instant::now();
        let mut told = false;
        loop {
            tokio::select! {
                () = self.due.notified(), if under_way.len() < LOANS_MAX => {}
                _ = ticks.tick() => {}
                Some(_) = under_way.join_next() => continue,
            }
            let Some(store) = store() else { return };
            let now_us = self.clock.steady_us();
            let mut loans = self.table.due(now_us);
            if sweep_at <= Instant::now() {
                sweep_at = Instant::now() + SWEEP_EVERY;
                self.table.set_nodes(*store.nodes().borrow());
                loans.extend(self.table.sweep(now_us));
                if self.table.met_too_small() && !std::mem::replace(&mut told, true) {
                    let nodes = *store.nodes().borrow();
                    tracing::warn!(event = "too_small_to_lease", nodes, "{TOO_SMALL}");
                }
            }
            if !loans.is_empty() {
                let this = Arc::clone(&self);
                under_way.spawn(async move { this.send(loans, &store).await });
            }
        }
    }

    /// Sends loans, some at a time.
    async fn send(self: &Arc<Self>, loans: Vec<Loan>, store: &RedisStore) {
        let mut under_way = JoinSet::new();
        for loan in loans {
            if under_way.len() >= LOANS_MAX {
                under_way.join_next().await;
            }
            let (this, store) = (Arc::clone(self), store.clone());
            under_way.spawn(async move { this.ask(&store, loan).await });
        }
        while under_way.join_next().await.is_some() {}
    }

    fn wake(&self) {
        if self.table.is_due() {
            self.due.notify_one();
        }
    }
}
