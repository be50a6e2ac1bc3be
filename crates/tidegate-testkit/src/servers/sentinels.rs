//! A primary with a replica, watched by Sentinels.

use std::io;
use std::time::Duration;

use super::{Server, Tls, until};

const READY: Duration = Duration::from_secs(20);
/// How long a primary is silent before a Sentinel declares it down. With a shorter time a busy
/// machine would fail over by itself.
const DOWN_AFTER_MS: &str = "1000";

/// A primary, a replica, and Sentinels that promote the replica when the primary is lost.
#[derive(Debug)]
pub struct Sentinels {
    servers: [Server; 2],
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// The Sentinels' name of the primary.
    pub const NAME: &'static str = "tidegate";

    /// Starts them with `count` Sentinels, of which more than half must agree. They are ready when the
    /// replica is in step, and all Sentinels know it and each other.
    ///
    /// # Errors
    /// The binary is not installed, or something does not start.
    pub fn start(count: usize) -> io::Result<Self> {
        Self::start_as(count, None)
    }

    /// Starts them so that all of them speak TLS with each other, and with clients on a second port.
    ///
    /// # Errors
    /// The binary is not installed or has no TLS, or something does not start.
    pub fn start_with_tls(count: usize, tls: &Tls) -> io::Result<Self> {
        Self::start_as(count, Some(tls))
    }

    fn start_as(count: usize, tls: Option<&Tls>) -> io::Result<Self> {
        let with = |own: &[&str]| -> io::Result<Vec<String>> {
            let secured = tls.map(Tls::arguments).transpose()?.unwrap_or_default();
            Ok(own.iter().map(|argument| (*argument).to_owned()).chain(secured).collect())
        };
        let primary = Server::start_with_ports(|| with(&[]))?;
        let port = primary.peer_port().to_string();
        let replica = Server::start_with_ports(|| with(&["--replicaof", "127.0.0.1", &port]))?;
        until("the replica is in step", READY, || Ok(replica.info("master_link_status")? == "up"))?;
        let text = format!(
            "sentinel monitor {name} 127.0.0.1 {port} {quorum}\n\
             sentinel down-after-milliseconds {name} {DOWN_AFTER_MS}\n\
             sentinel failover-timeout {name} 3000\n",
            name = Self::NAME,
            quorum = count / 2 + 1,
        );
        let sentinels: Vec<Server> = (0..count)
            .map(|_| Server::start_configured(&text, || with(&["--sentinel"])))
            .collect::<io::Result<_>>()?;
        let deployment = Self { servers: [primary, replica], sentinels };
        deployment.wait_until_sentinels_agree()?;
        Ok(deployment)
    }

    /// The two servers: the first primary and its replica.
    #[must_use]
    pub fn servers(&self) -> &[Server; 2] {
        &self.servers
    }

    /// The Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// The URLs of the Sentinels.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Server::url).collect()
    }

    /// The server that the first Sentinel takes for the primary.
    ///
    /// # Errors
    /// The Sentinel cannot be reached, or names neither.
    pub fn primary(&self) -> io::Result<&Server> {
        let sentinel = self.sentinels.first().ok_or(io::ErrorKind::NotFound)?;
        let reply = sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME])?;
        let port = reply.items().get(1).map(|port| port.text().to_owned()).unwrap_or_default();
        let mut servers = self.servers.iter();
        let found = servers.find(|server| server.peer_port().to_string() == port);
        found.ok_or_else(|| io::Error::other(format!("nobody is on port `{port}`")))
    }

    /// Waits until the replica has everything that the primary has.
    ///
    /// # Errors
    /// This takes longer than twenty seconds.
    pub fn wait_until_in_step(&self) -> io::Result<()> {
        let [first, second] = &self.servers;
        until("the replica is in step", READY, || {
            Ok(first.info("master_repl_offset")? == second.info("master_repl_offset")?)
        })
    }

    /// Kills the primary, and waits until all Sentinels agree that the replica is the primary. Writes
    /// that were not replicated are lost. Returns the new primary.
    ///
    /// # Errors
    /// The Sentinels take longer than twenty seconds.
    pub fn fail_over(&self) -> io::Result<&Server> {
        let lost = self.primary()?;
        let [first, second] = &self.servers;
        let heir = if lost.port() == first.port() { second } else { first };
        lost.kill()?;
        until("the Sentinels have made the replica a primary", READY, || {
            let agreed = self.sentinels.iter().map(|sentinel| {
                let reply =
                    sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME])?;
                Ok(reply.items().get(1).is_some_and(|at| at.text() == heir.peer_port().to_string()))
            });
            let agreed = agreed.collect::<io::Result<Vec<bool>>>()?;
            Ok(agreed.into_iter().all(|agrees| agrees) && heir.info("role")? == "master")
        })?;
        Ok(heir)
    }

    fn wait_until_sentinels_agree(&self) -> io::Result<()> {
        let others = self.sentinels.len() - 1;
        for sentinel in &self.sentinels {
            // Sentinels find each other faster with this; older servers do not know it and take seconds longer.
            let _ = sentinel.command(&[
                "SENTINEL",
                "DEBUG",
                "info-period",
                "200",
                "publish-period",
                "100",
                "ask-period",
                "100",
            ]);
        }
        until("the Sentinels know the replica and each other", READY, || {
            let known = self.sentinels.iter().map(|sentinel| {
                let count = |what| -> io::Result<usize> {
                    Ok(sentinel.command(&["SENTINEL", what, Self::NAME])?.items().len())
                };
                Ok(count("SENTINELS")? == others && count("REPLICAS")? == 1)
            });
            Ok(known.collect::<io::Result<Vec<bool>>>()?.into_iter().all(|known| known))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_replica_takes_over_with_its_replicated_writes() {
        for count in [1, 3] {
            let deployment = Sentinels::start(count).unwrap();
            assert_eq!(deployment.urls().len(), count);
            let first = deployment.primary().unwrap();
            first.command(&["SET", "k", "v"]).unwrap();
            deployment.wait_until_in_step().unwrap();
            let heir = deployment.fail_over().unwrap();
            assert_ne!(heir.port(), first.port());
            assert_eq!(heir.command(&["GET", "k"]).unwrap().text(), "v");
            assert_eq!(deployment.primary().unwrap().port(), heir.port());
        }
    }
}
