//! A webhook of a policy, as messages are sent to it.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use aws_lc_rs::hmac;
use http::{HeaderValue, Uri};
use rustls::pki_types::ServerName;
use tidegate::identity::Networks;
use tidegate::policy::Webhook;
use tokio::sync::Semaphore;

use super::address::may_be_told;
use crate::port::port;

/// How many messages may wait for one webhook.
pub(super) const WAITING_MAX: u32 = 256;
/// How many are sent to one webhook at once.
const CONNECTIONS_MAX: usize = 4;

/// Where messages go, and how many are on the way.
pub(super) struct Target {
    pub(super) webhook: Webhook,
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) host_header: HeaderValue,
    pub(super) path: Uri,
    pub(super) tls: Option<ServerName<'static>>,
    pub(super) key: Option<hmac::Key>,
    /// The names of the policy's ratios, to tell them from its penalties.
    pub(super) ratios: Vec<String>,
    /// A place for each message that is not delivered yet.
    pub(super) room: Arc<Semaphore>,
    pub(super) connections: Semaphore,
}

/// Why messages cannot go to a webhook. It does not repeat the URL, which is a secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TargetError(String);

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TargetError {}

impl Target {
    /// Reads a webhook's URL.
    ///
    /// # Errors
    /// It is none, or leads where no webhook may be.
    pub(super) fn new(webhook: &Webhook, allowed: &Networks) -> Result<Self, TargetError> {
        let name = &webhook.name;
        let wrong =
            |expected: &str| TargetError(format!("the webhook `{name}`: expected {expected}"));
        let uri: Uri =
            webhook.url.parse().map_err(|_| wrong("a URL such as https://example.com/hook"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("a URL that starts with https:// or http://")),
        };
        let authority = uri.authority().ok_or_else(|| wrong("a URL with a host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("a URL without a user; messages are signed with its secret"));
        }
        let host = authority.host().trim_matches(['[', ']']).to_owned();
        if let Ok(ip) = host.parse::<IpAddr>()
            && !may_be_told(ip, allowed)
        {
            let detail = "a public address, or one that --notify-allow-private lists";
            return Err(wrong(detail));
        }
        let tls = is_tls.then(|| ServerName::try_from(host.clone())).transpose();
        Ok(Self {
            webhook: webhook.clone(),
            port: port(authority, is_tls).ok_or_else(|| wrong("a URL with a port up to 65535"))?,
            host_header: HeaderValue::from_str(authority.as_str())
                .map_err(|_| wrong("a URL with a host"))?,
            path: uri
                .path_and_query()
                .map_or("/", |path| path.as_str())
                .parse()
                .map_err(|_| wrong("a URL with a path"))?,
            tls: tls.map_err(|_| wrong("a URL with a host that a certificate can name"))?,
            key: webhook
                .secret
                .as_ref()
                .map(|secret| hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes())),
            ratios: Vec::new(),
            room: Arc::new(Semaphore::new(WAITING_MAX as usize)),
            connections: Semaphore::new(CONNECTIONS_MAX),
            host,
        })
    }

    /// How many messages are on the way.
    pub(super) fn waiting(&self) -> usize {
        (WAITING_MAX as usize).saturating_sub(self.room.available_permits())
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("name", &self.webhook.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<Target, String> {
        let webhook = Webhook { name: "security".to_owned(), url: url.to_owned(), secret: None };
        Target::new(&webhook, &Networks::default()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_url_is_a_host_a_port_and_a_path() {
        let one = target("https://Hooks.example.com/services/a?b=c").unwrap();
        assert_eq!((one.port, one.path.to_string()), (443, "/services/a?b=c".to_owned()));
        assert_eq!(one.host_header, "Hooks.example.com");
        assert!(one.tls.is_some());
        let other = target("http://[2606:4700::1]:8080").unwrap();
        assert_eq!((other.host.as_str(), other.port), ("2606:4700::1", 8080));
        assert_eq!((other.path.to_string().as_str(), other.tls), ("/", None));
    }

    #[test]
    fn what_cannot_be_told_is_refused_without_repeating_the_url() {
        for (url, expected) in [
            ("ftp://example.com/s3cret", "https://"),
            ("/s3cret", "https://"),
            ("https://me:s3cret@example.com/", "without a user"),
            ("https://exa mple/s3cret", "a URL such as"),
            ("https://example.com:99999/s3cret", "a port"),
            ("http://127.0.0.1/s3cret", "--notify-allow-private"),
            ("http://[::ffff:10.0.0.1]/s3cret", "--notify-allow-private"),
        ] {
            let error = target(url).unwrap_err();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{url}: {error}");
        }
    }
}
