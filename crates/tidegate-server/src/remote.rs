//! The shared stores that there are: Redis, and what speaks its language.

use std::sync::Arc;
use std::time::Duration;

use tidegate::clock::Now;
use tidegate::plan::Plan;
use tidegate::store::{Amended, Amendment, Answer, Store as _};
use tidegate_redis::{
    Config, ConfigError, Cursor, Found, LeaseHealth, MarkChange, Page, RedisStore, Replica, State,
    Uncorrected,
};
use tokio::sync::watch;

use crate::config::SharedStoreConfig;
use crate::error::StartError;
use crate::shared::{Calling, Health, KnownHealth, Remote, ShardHealth, StoreState, Unamended};
use crate::tls::trusting;

/// How long the secret of all nodes is asked for, once the store answers.
const SECRET_WAIT: Duration = Duration::from_secs(1);

/// Begins to connect to the store that the flags name. A store that is lost is no error: it is found
/// when it is back.
pub(crate) fn connect(config: &SharedStoreConfig) -> Result<Arc<dyn Remote>, StartError> {
    if config.ca.is_some() && !config.url.starts_with("rediss") {
        let detail = "--store-ca: only a store `rediss://…` has certificates to verify";
        return Err(StartError::new(detail));
    }
    let mut store = parse(config).map_err(|error| match error {
        ConfigError::NoSlots | ConfigError::Tag(_) => {
            StartError::new(format!("--cluster-tag: {error}"))
        }
        ConfigError::Scheme if config.cluster_tag.is_some() => {
            StartError::new(format!("--cluster-tag: {}", ConfigError::NoSlots))
        }
        ConfigError::Scheme => StartError::new(
            "--store: expected `memory`, or a shared store such as `redis://127.0.0.1:6379`",
        ),
        error => StartError::new(format!("--store: {error}")),
    })?;
    if let Some(ca) = &config.ca {
        store = store.trust(trusting(ca).map_err(StartError::new)?);
    }
    Ok(Arc::new(Redis(RedisStore::connect(&store))))
}

fn parse(config: &SharedStoreConfig) -> Result<Config, ConfigError> {
    let store = Config::parse(&config.url)?.prefix(&config.prefix)?.timeout(config.timeout)?;
    let store = match &config.cluster_tag {
        Some(tag) => store.cluster_tag(tag)?,
        None => store,
    };
    Ok(match config.nodes {
        Some(nodes) => store.nodes(nodes.get()),
        None => store,
    })
}

/// What is wrong with a server of which nothing is known yet.
const UNREACHED: &str = "it was not reached yet";

struct Redis(RedisStore);

impl Remote for Redis {
    fn decide_at_once(&self, plan: &Plan) -> Option<Answer> {
        self.0.decide_at_once(plan)
    }

    fn decide(&self, plan: Arc<Plan>) -> Calling<Answer> {
        let store = self.0.clone();
        Box::pin(async move { store.decide(&plan).await })
    }

    fn amend(&self, _: Now, amendments: Vec<Amendment>) -> Calling<Amended, Unamended> {
        let store = self.0.clone();
        Box::pin(async move {
            let corrected = store.correct(&amendments).await;
            corrected.map_err(|Uncorrected { error, sent, rest, .. }| Unamended {
                error,
                sent,
                rest,
            })
        })
    }

    fn announce(&self, families: &[u64]) {
        self.0.announce(families);
    }

    fn keeps_order(&self) -> bool {
        self.0.keeps_order()
    }

    fn leases(&self) -> LeaseHealth {
        self.0.leases()
    }

    fn close(&self) -> Calling<()> {
        let store = self.0.clone();
        Box::pin(async move {
            store.close().await;
            Ok(())
        })
    }

    fn health(&self) -> Health {
        let health = self.0.health();
        let state = match health.state() {
            State::Merging => StoreState::Recovering,
            state if state.asks() => StoreState::Healthy,
            _ => StoreState::Lost,
        };
        let mut errors = health.shards.iter().filter_map(|shard| {
            let error = shard.last_error.as_ref()?;
            Some(format!("{}: {error}", shard.address))
        });
        // One that is lost has not been reached, whatever else there is to say of it.
        let last_error =
            errors.next().or_else(|| (state == StoreState::Lost).then(|| UNREACHED.to_owned()));
        let since_unix_us = health.shards.iter().map(|shard| shard.since_us).max();
        Health {
            kind: "redis",
            state,
            since_unix_us: since_unix_us.unwrap_or_default(),
            losses: health.shards.iter().map(losses).sum(),
            nodes: health.nodes,
            last_error,
            shards: health.shards.iter().map(shard).collect(),
            lost_refunds: health.lost_refunds,
            known: KnownHealth {
                hears: health.known.hears,
                refusals: health.known.refusals,
                answered: health.known.answered,
            },
            strangers: health.strangers,
        }
    }

    fn secret(&self) -> Calling<[u8; 16]> {
        let store = self.0.clone();
        Box::pin(async move { store.secret(SECRET_WAIT).await })
    }

    fn hashes_with(&self, digest: &str) {
        self.0.hashes_with(digest);
    }

    fn share_marks(&self, replica: Arc<dyn Replica>) -> watch::Receiver<bool> {
        self.0.share_marks(replica)
    }

    fn mark_changed(&self, change: MarkChange) {
        self.0.mark_changed(change);
    }

    fn scan(&self, pattern: String, from: Cursor, count: usize) -> Calling<Page> {
        let store = self.0.clone();
        Box::pin(async move { store.scan(&pattern, from, count).await })
    }

    fn look(&self, names: Vec<Arc<str>>) -> Calling<Vec<Option<Found>>> {
        let store = self.0.clone();
        Box::pin(async move { store.look(&names).await })
    }

    fn delete(&self, names: Vec<Arc<str>>) -> Calling<u64> {
        let store = self.0.clone();
        Box::pin(async move { store.delete(&names).await })
    }
}

/// How often a server was lost.
fn losses(shard: &tidegate_redis::ShardHealth) -> u64 {
    let open = shard.changes.iter().filter(|(state, _)| *state == State::Open);
    open.map(|(_, times)| times).sum()
}

fn shard(shard: &tidegate_redis::ShardHealth) -> ShardHealth {
    let last_error = match &shard.last_error {
        None if !shard.state.asks() => Some(UNREACHED.to_owned()),
        error => error.clone(),
    };
    ShardHealth {
        address: shard.address.clone(),
        state: shard.state.name(),
        since_unix_us: shard.since_us,
        last_error,
        queued: shard.queued,
        calls: shard.calls,
        errors: shard.errors.iter().map(|(reason, count)| (reason.name(), *count)).collect(),
        changes: shard.changes.iter().map(|(state, count)| (state.name(), *count)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, change: impl FnOnce(&mut SharedStoreConfig)) -> String {
        let mut config = SharedStoreConfig {
            url: url.to_owned(),
            prefix: "tg:".to_owned(),
            ca: None,
            timeout: Duration::from_millis(20),
            nodes: None,
            cluster_tag: None,
        };
        change(&mut config);
        connect(&config).err().map(|error| error.to_string()).unwrap_or_default()
    }

    #[tokio::test]
    async fn what_cannot_be_used_is_refused_without_telling_the_password() {
        for url in [
            "disk",
            "reddis://:hunter2@host",
            "redis://:hunter2@host:99999",
            "redis+cluster://:hunter2@a,b/2",
            "redis+sentinel://:hunter2@a,b",
            "redis://",
        ] {
            let told = refused(url, |_| {});
            assert!(told.starts_with("--store: ") && !told.contains("hunter2"), "{told}");
        }
        let told = refused("redis://127.0.0.1:1", |config| config.prefix = "{a}".to_owned());
        assert!(told.contains("prefix"), "{told}");
        for (url, tag) in [("redis://127.0.0.1:1", "a"), ("redis+cluster://127.0.0.1:1", "{}")] {
            let told = refused(url, |config| config.cluster_tag = Some(tag.to_owned()));
            assert!(told.starts_with("--cluster-tag"), "{told}");
        }
        let told = refused("redis://127.0.0.1:1", |config| config.ca = Some("ca.pem".into()));
        assert!(told.starts_with("--store-ca"), "{told}");
        let told = refused("rediss://127.0.0.1:1", |config| config.ca = Some("gone.pem".into()));
        assert!(told.contains("gone.pem"), "{told}");
        assert_eq!(refused("redis://127.0.0.1:1", |_| {}), "", "nobody need be there");
    }
}
