//! One request at a time to the admin listener, over HTTP/1.1 without TLS: that of this machine, or one
//! at the end of a tunnel.

use std::time::Duration;

use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::uri::Scheme;
use http::{HeaderValue, Method, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use crate::command::Error;

/// The daemon answers within a second or says why not.
const PATIENCE: Duration = Duration::from_secs(30);
/// No page is as long as this.
const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Where to ask.
pub(super) struct Client {
    /// Host and port.
    authority: String,
    token: Option<HeaderValue>,
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
        let authority = uri.authority().filter(|_| is_whole).ok_or_else(expected)?;
        let token = token.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let token = token.transpose().map_err(|_| "--token: no header can carry it")?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let port = authority.port_u16().unwrap_or(80);
        Ok(Self { authority: format!("{}:{port}", authority.host()), token, runtime })
    }

    /// What a call answers; what is wrong with it is an error.
    pub(super) fn send(&self, method: &Method, target: &str) -> Result<Value, Error> {
        self.exchange(method, target, None)
    }

    /// What a call with a body answers.
    pub(super) fn post(&self, target: &str, body: &Value) -> Result<Value, Error> {
        self.exchange(&Method::POST, target, Some(body))
    }

    fn exchange(
        &self,
        method: &Method,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Value, Error> {
        let answered = async { timeout(PATIENCE, self.answer(method, target, body)).await };
        let answered = self.runtime.block_on(answered);
        answered.map_err(|_| format!("{} does not answer", self.authority))?
    }

    async fn answer(
        &self,
        method: &Method,
        target: &str,
        body: Option<&Value>,
    ) -> Result<Value, Error> {
        let unreachable = |error| format!("cannot reach {}: {error}", self.authority);
        let socket = TcpStream::connect(&self.authority).await.map_err(unreachable)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(socket)).await?;
        tokio::spawn(connection);
        let mut request = Request::builder().method(method).uri(target);
        request = request.header(HOST, &self.authority);
        if let Some(token) = &self.token {
            request = request.header(AUTHORIZATION, token);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let answer =
            sender.send_request(request.body(Full::<hyper::body::Bytes>::from(body))?).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        match serde_json::from_slice::<Value>(&body) {
            Ok(json) if status.is_success() => Ok(json),
            Ok(json) if json["detail"].is_string() => {
                Err(json["detail"].as_str().unwrap_or_default().into())
            }
            _ => Err(format!("{} answered {status}, and no JSON", self.authority).into()),
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
