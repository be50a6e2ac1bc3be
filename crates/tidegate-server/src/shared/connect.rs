//! Connects to the shared store that the flags name: Redis, or a server that speaks its protocol.

use tidegate_redis::{Config, ConfigError, RedisStore};

use crate::config::SharedStoreConfig;
use crate::error::StartError;
use crate::tls::trusting;

/// Begins to connect, in the background. A store that does not answer is no error here: the connection
/// is made once it does.
pub(crate) fn connect(config: &SharedStoreConfig) -> Result<RedisStore, StartError> {
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
        store = store.trust(trusting(ca)?);
    }
    Ok(RedisStore::connect(&store))
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
