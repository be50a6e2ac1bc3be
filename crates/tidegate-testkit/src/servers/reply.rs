//! The smallest Redis client: one command, one connection, one reply.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a test waits for a server.
const PATIENCE: Duration = Duration::from_secs(2);

/// The reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A line or a string of any bytes.
    Text(String),
    /// A number.
    Integer(i64),
    /// Nothing.
    Nil,
    /// Several.
    Array(Vec<Self>),
}

impl Reply {
    /// The text; empty for anything else.
    #[must_use]
    pub fn text(&self) -> &str {
        if let Self::Text(text) = self { text } else { "" }
    }

    /// The elements; none for anything else.
    #[must_use]
    pub fn items(&self) -> &[Self] {
        if let Self::Array(items) = self { items } else { &[] }
    }
}

/// Sends one command and reads its reply. An error reply is an error.
pub(super) fn ask(server: SocketAddr, command: &[&str]) -> io::Result<Reply> {
    let mut connection = TcpStream::connect_timeout(&server, PATIENCE)?;
    connection.set_read_timeout(Some(PATIENCE))?;
    connection.set_write_timeout(Some(PATIENCE))?;
    let mut text = format!("*{}\r\n", command.len());
    for part in command {
        text.push_str(&format!("${}\r\n{part}\r\n", part.len()));
    }
    connection.write_all(text.as_bytes())?;
    read(&mut BufReader::new(connection))
}

fn read(from: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    from.read_line(&mut line)?;
    let line = line.trim_end();
    let (kind, rest) = line.split_at_checked(1).ok_or(io::ErrorKind::UnexpectedEof)?;
    let number = || rest.parse::<i64>().map_err(io::Error::other);
    match kind {
        "+" => Ok(Reply::Text(rest.to_owned())),
        "-" => Err(io::Error::other(rest)),
        ":" => number().map(Reply::Integer),
        "$" => match usize::try_from(number()?) {
            Ok(length) => read_text(from, length),
            Err(_) => Ok(Reply::Nil),
        },
        "*" => match usize::try_from(number()?) {
            Ok(count) => {
                (0..count).map(|_| read(from)).collect::<io::Result<_>>().map(Reply::Array)
            }
            Err(_) => Ok(Reply::Nil),
        },
        _ => Err(io::Error::other(format!("not a reply: {line}"))),
    }
}

fn read_text(from: &mut impl Read, length: usize) -> io::Result<Reply> {
    let mut bytes = vec![0; length + 2];
    from.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_reply_is_read() {
        let mut bytes: &[u8] = b"*5\r\n+OK\r\n:-7\r\n$2\r\nhi\r\n$-1\r\n*-1\r\n";
        let items = vec![
            Reply::Text("OK".into()),
            Reply::Integer(-7),
            Reply::Text("hi".into()),
            Reply::Nil,
        ];
        let Reply::Array(read) = read(&mut bytes).unwrap() else { panic!("an array") };
        assert_eq!(read[..4], items);
        assert_eq!(read[4], Reply::Nil);
    }

    #[test]
    fn an_error_reply_and_a_truncated_reply_are_errors() {
        assert_eq!(read(&mut &b"-ERR no\r\n"[..]).unwrap_err().to_string(), "ERR no");
        assert!(read(&mut &b"$5\r\nhi"[..]).is_err());
        assert!(read(&mut &b""[..]).is_err());
    }
}
