//! A service behind the gateway, controlled by the test.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// A request as the upstream received it.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    /// Such as `GET /path HTTP/1.1`.
    pub(crate) line: String,
    /// With lower-case names, in order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }
}

/// What the upstream does with a request.
pub(crate) enum Reply {
    /// Answers with a status and a body.
    Answer(u16, String),
    /// Sends these bytes and goes on.
    Raw(Vec<u8>),
    /// Hangs up.
    Close,
    /// Takes the socket.
    Take(Box<dyn FnOnce(TcpStream) + Send>),
}

type Handler = dyn Fn(&ReceivedRequest) -> Reply + Send + Sync;

/// An upstream; its threads end when their connections do.
pub(crate) struct Upstream {
    address: SocketAddr,
    seen: Arc<Mutex<Vec<ReceivedRequest>>>,
}

impl Upstream {
    /// One that answers everything with 200.
    pub(crate) fn start() -> Self {
        Self::replying(|_| Reply::Answer(200, "upstream\n".to_owned()))
    }

    pub(crate) fn replying(
        handler: impl Fn(&ReceivedRequest) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen: Arc<Mutex<Vec<ReceivedRequest>>> = Arc::default();
        let (handler, log): (Arc<Handler>, _) = (Arc::new(handler), Arc::clone(&seen));
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (handler, log) = (Arc::clone(&handler), Arc::clone(&log));
                thread::spawn(move || serve(socket, &*handler, &log));
            }
        });
        Self { address, seen }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// All requests so far.
    pub(crate) fn seen(&self) -> Vec<ReceivedRequest> {
        self.seen.lock().unwrap().clone()
    }

    /// The number of requests so far.
    pub(crate) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    /// The last request.
    pub(crate) fn last(&self) -> ReceivedRequest {
        self.seen.lock().unwrap().last().cloned().expect("the upstream saw no request")
    }
}

fn serve(socket: TcpStream, handler: &Handler, log: &Mutex<Vec<ReceivedRequest>>) {
    let mut reader = BufReader::new(socket.try_clone().unwrap());
    let mut writer = socket;
    while let Some(seen) = read(&mut reader) {
        log.lock().unwrap().push(seen.clone());
        let sent = match handler(&seen) {
            Reply::Answer(status, body) => {
                let length = body.len();
                writer.write_all(
                    format!("HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n\r\n{body}")
                        .as_bytes(),
                )
            }
            Reply::Raw(bytes) => writer.write_all(&bytes),
            Reply::Close => return,
            Reply::Take(act) => return act(writer),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn read(reader: &mut BufReader<TcpStream>) -> Option<ReceivedRequest> {
    let line = line(reader)?;
    let mut seen = ReceivedRequest { line, headers: Vec::new(), body: Vec::new() };
    loop {
        let header = self::line(reader)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':')?;
        seen.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if let Some(length) = seen.header("content-length") {
        seen.body = vec![0; length.parse().ok()?];
        reader.read_exact(&mut seen.body).ok()?;
    } else if seen.header("transfer-encoding").is_some() {
        loop {
            let length = usize::from_str_radix(&self::line(reader)?, 16).ok()?;
            let mut chunk = vec![0; length + 2];
            reader.read_exact(&mut chunk).ok()?;
            if length == 0 {
                break;
            }
            seen.body.extend_from_slice(&chunk[..length]);
        }
    }
    Some(seen)
}

fn line(reader: &mut BufReader<TcpStream>) -> Option<String> {
    let mut line = String::new();
    if reader.read_line(&mut line).ok()? == 0 {
        return None;
    }
    Some(line.trim_end().to_owned())
}
