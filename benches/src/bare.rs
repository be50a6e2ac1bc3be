//! A bare hyper server that reads requests and answers a fixed number of bytes: the floor for a server
//! that does nothing.

#![allow(
    clippy::unwrap_used,
    clippy::missing_panics_doc,
    clippy::print_stdout,
    reason = "a benchmark may stop at the first surprise"
)]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

use crate::load::Server;

/// The argument that makes this program such a server.
pub(crate) const ROLE: &str = "hyper";

/// A running server, in a process of its own.
#[derive(Debug)]
pub struct Bare {
    /// Its process, which ends with its owner.
    pub server: Server,
    /// The address that it listens on.
    pub address: SocketAddr,
}

impl Bare {
    /// Starts a server whose answers have this many bytes.
    #[must_use]
    pub fn start(bytes: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([ROLE, &bytes.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        Self { server: Server(child), address: line.trim().parse().unwrap() }
    }
}

/// Runs the server.
pub(crate) fn serve(bytes: usize) -> ! {
    let body = Bytes::from(vec![b'x'; bytes]);
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.unwrap().block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("{}", listener.local_addr().unwrap());
        loop {
            let (socket, _) = listener.accept().await.unwrap();
            socket.set_nodelay(true).unwrap();
            tokio::spawn(answer(socket, body.clone()));
        }
    })
}

async fn answer(socket: TcpStream, body: Bytes) {
    let service = service_fn(move |request: http::Request<Incoming>| {
        let body = body.clone();
        async move {
            request.into_body().collect().await?;
            let mut response = http::Response::new(Full::new(body));
            let json = http::HeaderValue::from_static("application/json");
            response.headers_mut().insert("content-type", json);
            Ok::<_, hyper::Error>(response)
        }
    });
    let http = hyper::server::conn::http1::Builder::new();
    // A client that hangs up needs no answer.
    let _ = http.serve_connection(TokioIo::new(socket), service).await;
}
