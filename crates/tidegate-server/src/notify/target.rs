//! A webhook of a policy, and the queue of its messages.

use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::hmac;
use http::Uri;
use tidegate::engine::policy::Webhook;
use tokio::sync::Semaphore;

use crate::error::StartError;
use crate::http_client::{AddressFilter, UrlOrigin};

/// At most this many messages wait for one webhook.
pub(super) const QUEUE_MAX: u32 = 256;
/// At most this many connections to one webhook are open.
const CONNECTIONS_MAX: usize = 4;

/// Where messages go, and which are under way.
pub(super) struct Target {
    pub(super) webhook: Webhook,
    pub(super) url: Uri,
    pub(super) key: Option<hmac::Key>,
    /// The names of the policy's ratios, to tell them from its penalties.
    pub(super) ratios: Vec<String>,
    /// Every message that is not delivered yet holds a permit.
    pub(super) queue: Arc<Semaphore>,
    pub(super) connections: Semaphore,
}

impl Target {
    /// Reads a webhook's URL.
    ///
    /// # Errors
    /// It is no URL, or names a forbidden address. The error does not repeat the URL, which is a secret.
    pub(super) fn new(webhook: &Webhook, filter: &AddressFilter) -> Result<Self, StartError> {
        let name = &webhook.name;
        let wrong =
            |expected: &str| StartError::new(format!("the webhook `{name}`: expected {expected}"));
        let url: Uri =
            webhook.url.parse().map_err(|_| wrong("a URL such as https://example.com/hook"))?;
        let origin = UrlOrigin::of(&url).map_err(wrong)?;
        if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(wrong("a URL without a user; messages are signed with its secret"));
        }
        if origin.host.parse::<IpAddr>().is_ok_and(|ip| !filter.allows(ip)) {
            return Err(wrong("a public address, or one that --notify-allow-private lists"));
        }
        let key = |secret: &String| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
        Ok(Self {
            webhook: webhook.clone(),
            url,
            key: webhook.secret.as_ref().map(key),
            ratios: Vec::new(),
            queue: Arc::new(Semaphore::new(QUEUE_MAX as usize)),
            connections: Semaphore::new(CONNECTIONS_MAX),
        })
    }

    /// The number of messages that are under way.
    pub(super) fn waiting(&self) -> usize {
        (QUEUE_MAX as usize).saturating_sub(self.queue.available_permits())
    }
}

#[cfg(test)]
mod tests {
    use tidegate::engine::identity::Networks;

    use super::*;

    fn target(url: &str) -> Result<Target, String> {
        let (name, url) = ("security".to_owned(), url.to_owned());
        let webhook = Webhook { name, url, secret: None, identities: false, body: None };
        let filter = AddressFilter::Public { besides: Networks::default() };
        Target::new(&webhook, &filter).map_err(|error| error.to_string())
    }

    #[test]
    fn an_unusable_url_is_refused_without_repeating_it() {
        for (url, expected) in [
            ("ftp://example.com/s3cret", "https://"),
            ("/s3cret", "https://"),
            ("https://me:s3cret@example.com/", "without a user"),
            ("https://exa mple/s3cret", "a URL such as"),
            ("https://example.com:99999/s3cret", "a port"),
            ("http://127.0.0.1/s3cret", "--notify-allow-private"),
            ("http://[::ffff:10.0.0.1]/s3cret", "--notify-allow-private"),
        ] {
            let error = target(url).err().unwrap();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{url}: {error}");
        }
    }
}
