//! The deployment's secret, which the first node makes and all keep.

use std::sync::OnceLock;
use std::time::Duration;

use redis::Value;
use tidegate::store::StoreError;
use tokio::time::{Instant, sleep};

use super::member::Member;
use super::routing::complete;
use super::shard::Shard;
use super::topology::Topology;
use crate::connection::{Failure, Remedy};
use crate::keys;

/// How long to wait before something is tried again that may be tried again.
pub(super) const RETRY: Duration = Duration::from_millis(50);

impl Topology {
    /// The secret, once it is known.
    pub(crate) fn known_secret(&self) -> Option<[u8; 16]> {
        self.secret.get().copied()
    }

    /// The secret, which is made if there is none.
    pub(super) async fn secret(&self, deadline: Instant) -> Result<[u8; 16], StoreError> {
        let mine = random()?;
        loop {
            match self.offer(mine, deadline).await {
                // Setting what is not there yet can be repeated.
                Err(failure) if failure.error.transient && Instant::now() + RETRY < deadline => {
                    sleep(RETRY).await;
                }
                Err(failure) => return Err(failure.error),
                Ok(found) => return Ok(*self.secret.get_or_init(|| found)),
            }
        }
    }

    async fn offer(&self, mine: [u8; 16], deadline: Instant) -> Result<[u8; 16], Failure> {
        let member = self.own_member()?;
        let offered = member.shard.offer(mine, deadline).await;
        self.note_move(&member, &offered);
        offered
    }

    /// Goes by what a server says of where the deployment's own keys are.
    pub(crate) fn note_move<T>(&self, told_by: &Member, replied: &Result<T, Failure>) {
        if let Err(Failure { remedy: Remedy::Moved { slot, to }, .. }) = replied {
            self.moved(*slot, &complete(to, told_by));
        }
    }
}

impl Shard {
    /// Offers a secret, and gives the one that was first.
    async fn offer(&self, mine: [u8; 16], deadline: Instant) -> Result<[u8; 16], Failure> {
        // Not until the deadline: a server that will never let us in says so before.
        self.connection.connected(deadline.min(Instant::now() + RETRY)).await;
        let key = keys::secret(&self.common.own);
        let mut offer = redis::cmd("SET");
        offer.arg(&key).arg(written(mine)).arg("NX");
        self.connection.send(&offer, deadline).await?;
        let reply = self.connection.send(redis::cmd("GET").arg(&key), deadline).await?;
        let Value::BulkString(text) = &reply else {
            return Err(Failure::unreadable("the deployment's secret is gone again"));
        };
        let digits = str::from_utf8(text).ok().filter(|text| text.len() == 32);
        let value = digits.and_then(|digits| u128::from_str_radix(digits, 16).ok());
        value.map(u128::to_be_bytes).ok_or_else(|| {
            let key = String::from_utf8_lossy(&key);
            Failure::unreadable(format!("`{key}` holds something else than 32 hexadecimal digits"))
        })
    }
}

/// Where the secret is kept.
pub(super) type Secret = OnceLock<[u8; 16]>;

/// A secret as the server keeps it.
pub(crate) fn written(secret: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(secret))
}

fn random() -> Result<[u8; 16], StoreError> {
    let mut bytes = [0; 16];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    let detail = || "the system gives no random bytes".to_owned();
    filled.map(|()| bytes).map_err(|_| StoreError { transient: false, detail: detail() })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::config::{Config, Server};
    use crate::connection::Reason;
    use crate::store::common::Common;
    use crate::store::topology::Range;

    #[tokio::test]
    async fn keys_that_moved_to_a_server_without_a_host_are_where_whoever_says_so_is() {
        let config = Config::parse("redis+cluster://127.0.0.1:1").unwrap();
        let topology = Topology::start(&config, Arc::new(Common::new(&config)));
        let server = |host: &str, port| Server { host: host.to_owned(), port };
        let master = server("127.0.0.1", 1);
        topology.install(&[Range { first: 0, last: 16_383, master, replicas: Vec::new() }]);
        let (slot, to) = (topology.own_slot, server("", 2));
        let moved = Failure::new(Reason::Refused, true, "MOVED");
        let moved = Failure { remedy: Remedy::Moved { slot, to }, ..moved };
        topology.note_move::<()>(&topology.own_member().unwrap(), &Err(moved));
        assert_eq!(topology.own_member().unwrap().server(), Some(&server("127.0.0.1", 2)));
    }
}
