//! Calls to a daemon, over HTTP or HTTPS.

use std::path::Path;
use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::uri::Scheme;
use http::{HeaderValue, Method, Request, Uri};
use serde_json::Value;
use tidegate_server::{AddressFilter, HttpClient, HttpClientError};
use tokio::runtime::{Builder, Runtime};

use crate::command::Error;

/// No page is as long as this.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A client of one daemon.
pub(crate) struct Client {
    /// Scheme, host and port.
    origin: String,
    token: Option<HeaderValue>,
    http: HttpClient,
    runtime: Runtime,
}

impl Client {
    /// A client of the daemon at a URL. A certificate is verified by the authorities of the file `ca` too,
    /// beside the well-known ones.
    pub(crate) fn new(url: &str, ca: Option<&Path>, deadline: Duration) -> Result<Self, Error> {
        let expected =
            || format!("found the URL `{url}`, expected http://HOST:PORT or https://HOST:PORT");
        let uri: Uri = url.parse().map_err(|_| expected())?;
        let schemes = [&Scheme::HTTP, &Scheme::HTTPS];
        let scheme = uri.scheme().filter(|scheme| schemes.contains(scheme)).ok_or_else(expected)?;
        let is_whole = matches!(uri.path(), "" | "/") && uri.query().is_none();
        let authority = uri.authority().filter(|_| is_whole).ok_or_else(expected)?;
        let origin = format!("{scheme}://{authority}");
        let mut http = HttpClient::new(AddressFilter::Any, deadline, ANSWER_BYTES_MAX);
        if let Some(ca) = ca {
            if *scheme != Scheme::HTTPS {
                return Err(format!(
                    "--ca verifies a certificate, and {origin} has none: say https://"
                )
                .into());
            }
            http = http.trust_authorities(ca)?;
        }
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { origin, token: None, http, runtime })
    }

    /// Sends a token with every call.
    pub(crate) fn with_token(mut self, token: Option<&str>) -> Result<Self, Error> {
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        self.token = token.transpose().map_err(|_| "--token: no header can carry it")?;
        Ok(self)
    }

    /// The answer to a call without a body.
    pub(crate) fn send(&self, method: &Method, target: &str) -> Result<Value, Error> {
        self.exchange(self.request(method, target).body(String::new())?)
    }

    /// The answer to a call with a body.
    pub(crate) fn post(&self, target: &str, body: &Value) -> Result<Value, Error> {
        let request = self.request(&Method::POST, target).header(CONTENT_TYPE, "application/json");
        self.exchange(request.body(body.to_string())?)
    }

    fn request(&self, method: &Method, target: &str) -> http::request::Builder {
        let request = Request::builder().method(method).uri(format!("{}{target}", self.origin));
        match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        }
    }

    fn exchange(&self, request: Request<String>) -> Result<Value, Error> {
        let daemon = &self.origin;
        let answer = self.runtime.block_on(self.http.send(request.map(Into::into)));
        let answer = answer.map_err(|error| match error {
            HttpClientError::Timeout => format!("{daemon} does not answer"),
            error => format!("cannot reach {daemon}: {error}"),
        })?;
        match serde_json::from_slice::<Value>(&answer.body?) {
            Ok(json) if answer.status.is_success() => Ok(json),
            Ok(json) if json["detail"].is_string() => {
                Err(json["detail"].as_str().unwrap_or_default().into())
            }
            _ => Err(format!("{daemon} answered {}, and no JSON", answer.status).into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client(url: &str) -> Result<Client, Error> {
        Client::new(url, None, Duration::from_secs(1))
    }

    #[test]
    fn only_a_plain_address_is_taken() {
        for url in
            ["http://127.0.0.1:7071", "http://127.0.0.1:7071/", "http://localhost", "https://a:1"]
        {
            assert!(client(url).is_ok(), "{url}");
        }
        for url in ["127.0.0.1:7071", "http://a:1/admin", "http://a/?x", "ftp://a", "", "http://"] {
            assert!(client(url).is_err(), "{url}");
        }
        assert!(client("http://a").unwrap().with_token(Some("line\nbreak")).is_err());
    }

    #[test]
    fn authorities_are_for_https() {
        let file = Path::new("/nowhere/ca.pem");
        let refused = |url| Client::new(url, Some(file), Duration::from_secs(1)).err().unwrap();
        assert!(refused("http://a").to_string().contains("https://"));
        assert!(refused("https://a").to_string().contains("/nowhere/ca.pem"));
    }
}
