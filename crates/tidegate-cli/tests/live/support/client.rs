//! A client that sends exact bytes, and reads one answer.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longer than any wait of a test.
const PATIENCE: Duration = Duration::from_secs(30);

/// A client of one address; every request has a connection of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) address: SocketAddr,
}

impl Client {
    pub(crate) fn new(address: SocketAddr) -> Self {
        Self { address }
    }

    pub(crate) fn get(&self, target: &str) -> Answer {
        self.send("GET", target, &[], None)
    }

    pub(crate) fn post(&self, target: &str, json: &str) -> Answer {
        self.send("POST", target, &[("Content-Type", "application/json")], Some(json))
    }

    /// A request with these headers, and a body with its length.
    pub(crate) fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> Answer {
        let mut connection = self.connect();
        connection.request(method, target, headers, body);
        connection.answer()
    }

    /// The status of the answer to a request. Its body is not read: it may have no end.
    pub(crate) fn status(
        &self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) -> u16 {
        let mut connection = self.connect();
        connection.request(method, target, headers, body);
        connection.status().expect("the server closed before it had answered")
    }

    /// Sends these bytes, and returns everything until the other side closes.
    pub(crate) fn raw(&self, bytes: &[u8]) -> String {
        let mut socket = self.connect().socket;
        // The other side may close before all bytes are sent.
        let _ = socket.write_all(bytes);
        let mut text = Vec::new();
        let _ = socket.read_to_end(&mut text);
        String::from_utf8_lossy(&text).into_owned()
    }

    pub(crate) fn connect(&self) -> Connection {
        self.over(TcpStream::connect(self.address).unwrap())
    }

    /// A connection over a socket that is open.
    pub(crate) fn over(&self, socket: TcpStream) -> Connection {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_nodelay(true).unwrap();
        Connection { socket, host: self.address.to_string(), read: Vec::new(), answers: 0 }
    }
}

/// A connection that is kept.
pub(crate) struct Connection {
    pub(crate) socket: TcpStream,
    host: String,
    read: Vec<u8>,
    answers: usize,
}

impl Connection {
    pub(crate) fn request(
        &mut self,
        method: &str,
        target: &str,
        headers: &[(&str, &str)],
        body: Option<&str>,
    ) {
        let mut text = format!("{method} {target} HTTP/1.1\r\n");
        if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
            text.push_str(&format!("Host: {}\r\n", self.host));
        }
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if let Some(body) = body {
            text.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        text.push_str(body.unwrap_or_default());
        // A closed connection is noticed when the answer is missing.
        let _ = self.socket.write_all(text.as_bytes());
    }

    /// Reads one answer.
    pub(crate) fn answer(&mut self) -> Answer {
        self.try_answer().expect("the server closed before it had answered")
    }

    /// Reads one answer; `None` if the connection ends before it is whole.
    pub(crate) fn try_answer(&mut self) -> Option<Answer> {
        let head_end = self.read_until(|read| {
            read.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
        })?;
        let head = String::from_utf8_lossy(&self.read[..head_end]).into_owned();
        self.read.drain(..head_end);
        let mut lines = head.lines();
        let status: u16 = lines.next()?.split(' ').nth(1)?.parse().ok()?;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut answer = Answer { status, headers, body: Vec::new() };
        if status == 100 {
            return self.try_answer();
        }
        answer.body = match (answer.header("content-length"), answer.header("transfer-encoding")) {
            _ if status == 101 || status == 204 || status == 304 => Vec::new(),
            (Some(length), _) => self.take(length.parse().ok()?)?,
            (None, Some(_)) => self.chunks()?,
            (None, None) => {
                self.read_until(|_| None);
                std::mem::take(&mut self.read)
            }
        };
        self.answers += 1;
        Some(answer)
    }

    /// Reads the status line of an answer.
    fn status(&mut self) -> Option<u16> {
        let end = self.read_until(|read| read.iter().position(|byte| *byte == b'\n'))?;
        let line = String::from_utf8_lossy(&self.read[..end]).into_owned();
        line.split(' ').nth(1)?.parse().ok()
    }

    /// Whether a request was answered before.
    pub(crate) fn was_answered(&self) -> bool {
        self.answers > 0
    }

    fn chunks(&mut self) -> Option<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let end = self.read_until(|read| {
                read.windows(2).position(|window| window == b"\r\n").map(|at| at + 2)
            })?;
            let line = String::from_utf8_lossy(&self.read[..end - 2]).into_owned();
            self.read.drain(..end);
            let length = usize::from_str_radix(line.split(';').next()?, 16).ok()?;
            let chunk = self.take(length + 2)?;
            if length == 0 {
                return Some(body);
            }
            body.extend_from_slice(&chunk[..length]);
        }
    }

    fn take(&mut self, bytes: usize) -> Option<Vec<u8>> {
        self.read_until(|read| (read.len() >= bytes).then_some(bytes))?;
        Some(self.read.drain(..bytes).collect())
    }

    /// Reads until the condition holds; `None` if the connection ends first.
    fn read_until(&mut self, found: impl Fn(&[u8]) -> Option<usize>) -> Option<usize> {
        loop {
            if let Some(at) = found(&self.read) {
                return Some(at);
            }
            let mut buffer = [0; 16 * 1024];
            match self.socket.read(&mut buffer) {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.read.extend_from_slice(&buffer[..read]),
            }
        }
    }

    /// Waits for the other side to close. Returns whether it did.
    pub(crate) fn is_closed(&mut self) -> bool {
        let ended = self.socket.read_to_end(&mut Vec::new());
        !ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    }
}

/// An answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// With lower-case names, in order.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.as_str())
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.status, self.text()))
    }
}
