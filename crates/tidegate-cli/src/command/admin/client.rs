//! Calls to the admin listener, over HTTP without TLS: that of this machine, or one behind a tunnel.

use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::uri::{Authority, Scheme};
use http::{HeaderValue, Method, Request, Uri};
use serde_json::Value;
use tidegate_server::{AddressFilter, HttpClient, HttpClientError};
use tokio::runtime::{Builder, Runtime};

use crate::command::Error;

/// The daemon answers within a second or says why not.
const DEADLINE: Duration = Duration::from_secs(30);
/// No page is as long as this.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A client of one daemon.
pub(super) struct Client {
    authority: Authority,
    token: Option<HeaderValue>,
    http: HttpClient,
    runtime: Runtime,
}

impl Client {
    pub(super) fn new(url: &str, token: Option<&str>) -> Result<Self, Error> {
        let expected = || format!("found --url `{url}`, expected http://HOST:PORT");
        let uri: Uri = url.parse().map_err(|_| expected())?;
        if uri.scheme() == Some(&Scheme::HTTPS) {
            return Err("--url: TLS is not spoken here; ask on the machine itself or through a \
                        tunnel, such as ssh -L 7071:127.0.0.1:7071 HOST"
                .into());
        }
        let is_whole = uri.scheme() == Some(&Scheme::HTTP) && matches!(uri.path(), "" | "/");
        let authority = uri.authority().filter(|_| is_whole).ok_or_else(expected)?.clone();
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let token = token.transpose().map_err(|_| "--token: no header can carry it")?;
        let http = HttpClient::new(AddressFilter::Any, DEADLINE, ANSWER_BYTES_MAX);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { authority, token, http, runtime })
    }

    /// The answer to a call without a body.
    pub(super) fn send(&self, method: &Method, target: &str) -> Result<Value, Error> {
        self.exchange(self.request(method, target).body(String::new())?)
    }

    /// The answer to a call with a body.
    pub(super) fn post(&self, target: &str, body: &Value) -> Result<Value, Error> {
        let request = self.request(&Method::POST, target).header(CONTENT_TYPE, "application/json");
        self.exchange(request.body(body.to_string())?)
    }

    fn request(&self, method: &Method, target: &str) -> http::request::Builder {
        let uri = format!("http://{}{target}", self.authority);
        let request = Request::builder().method(method).uri(uri);
        match &self.token {
            Some(token) => request.header(AUTHORIZATION, token),
            None => request,
        }
    }

    fn exchange(&self, request: Request<String>) -> Result<Value, Error> {
        let daemon = &self.authority;
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

    #[test]
    fn only_a_plain_address_is_taken() {
        for url in ["http://127.0.0.1:7071", "http://127.0.0.1:7071/", "http://localhost"] {
            assert!(Client::new(url, Some("t")).is_ok(), "{url}");
        }
        for url in ["127.0.0.1:7071", "https://a:1", "http://a:1/admin", "ftp://a", "", "http://"] {
            assert!(Client::new(url, None).is_err(), "{url}");
        }
        assert!(Client::new("http://a", Some("line\nbreak")).is_err());
    }
}
