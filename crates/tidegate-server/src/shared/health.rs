//! How a shared store is, as the status and the metrics tell it.

/// How a shared store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Health {
    /// What it is, such as `redis`.
    pub(crate) kind: &'static str,
    pub(crate) state: StoreState,
    /// Since when.
    pub(crate) since_unix_us: u64,
    /// How often one of its servers was lost. Whoever looks now and then does not see a loss that was
    /// short, and has to make up for it all the same.
    pub(crate) losses: u64,
    /// How many nodes were last seen to share it, this one included; `None` before any was.
    pub(crate) nodes: Option<u32>,
    /// What went wrong last.
    pub(crate) last_error: Option<String>,
    /// One for each server that is asked.
    pub(crate) shards: Vec<ShardHealth>,
    /// How many charges stand that a request with limits in several slots could not give back.
    pub(crate) lost_refunds: u64,
    /// The refusals that this node gives without asking.
    pub(crate) known: KnownHealth,
    /// How many nodes hash keys with another secret than this one.
    pub(crate) strangers: u32,
}

/// How one server of a shared store is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardHealth {
    pub(crate) address: String,
    /// The name of its state.
    pub(crate) state: &'static str,
    pub(crate) since_unix_us: u64,
    pub(crate) last_error: Option<String>,
    /// How many requests wait to be sent.
    pub(crate) queued: usize,
    /// In how many calls they travelled.
    pub(crate) calls: u64,
    /// How many were not answered, by reason.
    pub(crate) errors: Vec<(&'static str, u64)>,
    /// How often each state was entered: all that there are, in their order.
    pub(crate) changes: Vec<(&'static str, u64)>,
}

/// What becomes of refusals that are remembered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KnownHealth {
    /// Whether this node hears what others change; without that nothing is remembered.
    pub(crate) hears: bool,
    pub(crate) refusals: usize,
    pub(crate) answered: u64,
}

/// Whether a store can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreState {
    Healthy,
    /// It was lost, and is tried again.
    Recovering,
    /// Limits do what their `on_store_failure` says.
    Lost,
}

impl StoreState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::Recovering => "recovering",
            Self::Lost => "lost",
        }
    }
}
