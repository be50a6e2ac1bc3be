//! One connection to the upstream: HTTP/1.1, one request at a time.

use std::io;

use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};

use super::upload::Upload;

/// Sends requests on a connection, which ends with it.
pub(super) type Sender = SendRequest<Upload>;

/// Starts HTTP/1.1 on a socket, in a task of its own.
pub(super) async fn start<T>(socket: T) -> io::Result<Sender>
where
    T: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (sender, connection) =
        http1::handshake(TokioIo::new(socket)).await.map_err(io::Error::other)?;
    // How it ends is told to whoever waits for an answer.
    tokio::spawn(async move { drop(connection.with_upgrades().await) });
    Ok(sender)
}
