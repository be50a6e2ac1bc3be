//! The deployment's secret, which the first node makes and all keep.

use std::time::Duration;

use redis::Value;
use tidegate::StoreError;
use tokio::time::{Instant, sleep};

use super::topology::Topology;
use crate::connection::Failure;
use crate::keys;

/// How long a node waits before it asks again.
pub(super) const RETRY: Duration = Duration::from_millis(50);

impl Topology {
    /// The secret. If the server has none, this node makes it.
    pub(super) async fn secret(&self, deadline: Instant) -> Result<[u8; 16], StoreError> {
        let candidate = random()?;
        loop {
            match self.offer_secret(candidate, deadline).await {
                // `SET NX` can be repeated.
                Err(failure) if failure.error.transient && Instant::now() + RETRY < deadline => {
                    sleep(RETRY).await;
                }
                Err(failure) => return Err(failure.error),
                Ok(secret) => return Ok(*self.secret.get_or_init(|| secret)),
            }
        }
    }

    /// Offers a secret; returns the one that was first.
    async fn offer_secret(
        &self,
        candidate: [u8; 16],
        deadline: Instant,
    ) -> Result<[u8; 16], Failure> {
        let (handle, key) = (self.own_shard()?, keys::secret(&self.deployment.own_prefix));
        let connection = &handle.shard.connection;
        // A short wait: the error of a server that will never let us in is known before the deadline.
        connection.connected(deadline.min(Instant::now() + RETRY)).await;
        let mut offer = redis::cmd("SET");
        offer.arg(&key).arg(encode_secret(candidate)).arg("NX");
        let offered = connection.send(&offer, deadline).await;
        self.note_redirect(&handle, &offered);
        offered?;
        let reply = connection.send(redis::cmd("GET").arg(&key), deadline).await?;
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

/// A secret as the server keeps it.
pub(crate) fn encode_secret(secret: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(secret))
}

fn random() -> Result<[u8; 16], StoreError> {
    let mut bytes = [0; 16];
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let filled = provider.secure_random.fill(&mut bytes);
    let detail = || "the system gives no random bytes".to_owned();
    filled.map(|()| bytes).map_err(|_| StoreError { transient: false, detail: detail() })
}
