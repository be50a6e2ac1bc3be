//! The verification of CAPTCHA solutions by a service, in the siteverify form that Turnstile,
//! hCaptcha and reCAPTCHA share: secret, response and remoteip are posted, and the answer is JSON with
//! `success`. The number of requests at once, their time and the length of answers are bounded.

use std::fmt::Display;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{Request, StatusCode, Uri};
use serde::Deserialize;
use tidegate::engine::Key;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::http_client::{AddressFilter, HttpClient};

/// At most this many verifications at once. Further clients must try again.
const AT_ONCE_MAX: usize = 64;
/// At most this many of one client, which could block all others with wrong solutions.
const AT_ONCE_PER_CLIENT_MAX: usize = 2;
/// The time for one verification.
const DEADLINE: Duration = Duration::from_secs(5);
/// The longest answer that is read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// No service has longer responses.
const RESPONSE_BYTES_MAX: usize = 8 * 1024;

/// Asks the service that a policy names.
pub(super) struct CaptchaVerifier {
    client: HttpClient,
    permits: Semaphore,
    /// The clients whose solutions are being verified; as many as permits are in use.
    clients: Mutex<Vec<Key>>,
}

/// A client's permission to have a solution verified, until it is dropped.
pub(super) struct CaptchaPermit<'v> {
    verifier: &'v CaptchaVerifier,
    client: Key,
    _permit: SemaphorePermit<'v>,
}

/// The part of the service's answer that matters.
#[derive(Deserialize)]
struct Answer {
    success: bool,
}

impl CaptchaVerifier {
    pub(super) fn new() -> Self {
        Self::with_deadline(DEADLINE)
    }

    fn with_deadline(deadline: Duration) -> Self {
        Self {
            client: HttpClient::new(AddressFilter::Any, deadline, ANSWER_BYTES_MAX),
            permits: Semaphore::new(AT_ONCE_MAX),
            clients: Mutex::default(),
        }
    }

    /// Permits a verification, if one is left for this client.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn admit(&self, client: Key) -> Result<CaptchaPermit<'_>, String> {
        let mut clients = self.clients();
        if clients.iter().filter(|other| **other == client).count() >= AT_ONCE_PER_CLIENT_MAX {
            return Err("too many of one client are being verified".to_owned());
        }
        let Ok(permit) = self.permits.try_acquire() else {
            return Err("too many are being verified".to_owned());
        };
        clients.push(client);
        Ok(CaptchaPermit { verifier: self, client, _permit: permit })
    }

    fn clients(&self) -> MutexGuard<'_, Vec<Key>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl CaptchaPermit<'_> {
    /// True if the service accepts the response.
    ///
    /// # Errors
    /// Why the service could not verify it. The error names no secret.
    pub(super) async fn verify(
        &self,
        url: &str,
        secret: &str,
        response: &str,
        client: Option<IpAddr>,
    ) -> Result<bool, String> {
        if response.is_empty() || response.len() > RESPONSE_BYTES_MAX {
            return Ok(false);
        }
        let url: Uri = url.parse().map_err(describe)?;
        // The secret travels over TLS, except on this machine.
        if url.scheme_str() != Some("https") && !url.host().is_some_and(is_loopback) {
            return Err("its URL is not https".to_owned());
        }
        let request = Request::post(url)
            .header(CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(ACCEPT, "application/json")
            .body(Bytes::from(form(secret, response, client)))
            .map_err(describe)?;
        let answer = self.verifier.client.send(request).await.map_err(describe)?;
        if answer.status != StatusCode::OK {
            return Err(format!("it answers {}", answer.status));
        }
        let answer: Answer = serde_json::from_slice(&answer.body.map_err(describe)?)
            .map_err(|_| "its answer is not JSON with `success`".to_owned())?;
        Ok(answer.success)
    }
}

impl Drop for CaptchaPermit<'_> {
    fn drop(&mut self) {
        let mut clients = self.verifier.clients();
        if let Some(at) = clients.iter().position(|client| *client == self.client) {
            clients.swap_remove(at);
        }
    }
}

fn describe(error: impl Display) -> String {
    error.to_string()
}

fn form(secret: &str, response: &str, client: Option<IpAddr>) -> String {
    let mut form = form_urlencoded::Serializer::new(String::new());
    form.append_pair("secret", secret).append_pair("response", response);
    if let Some(ip) = client {
        form.append_pair("remoteip", &ip.to_string());
    }
    form.finish()
}

/// True for this machine, by address or by the name that stands for it.
fn is_loopback(host: &str) -> bool {
    host.eq_ignore_ascii_case("localhost")
        || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
#[path = "captcha_tests.rs"]
mod tests;
