//! A server that answers, but not what was asked.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::health::UNREACHED;

/// Serves connections that get this answer to every script, and `OK` to all else; returns the URL.
async fn serve(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            // It ends when the client is gone.
            tokio::spawn(async move { _ = converse(client, answer).await });
        }
    });
    url
}

async fn converse(client: TcpStream, answer: &str) -> std::io::Result<()> {
    let mut client = BufReader::new(client);
    loop {
        let command = read_command(&mut client).await?;
        let is_script = command.starts_with(b"EVAL") || command.starts_with(b"SCRIPT");
        client.write_all(if is_script { answer.as_bytes() } else { b"+OK\r\n" }).await?;
    }
}

/// Reads an array of strings; returns the first.
async fn read_command(client: &mut BufReader<TcpStream>) -> std::io::Result<Vec<u8>> {
    let count = read_number(client).await?;
    let mut first = None;
    for _ in 0..count {
        let mut part = vec![0; read_number(client).await? + 2];
        client.read_exact(&mut part).await?;
        first.get_or_insert(part);
    }
    Ok(first.unwrap_or_default())
}

/// Reads a line such as `*3` or `$5`.
async fn read_number(client: &mut BufReader<TcpStream>) -> std::io::Result<usize> {
    let mut line = String::new();
    client.read_line(&mut line).await?;
    let number = line.trim_end().get(1..).and_then(|number| number.parse().ok());
    number.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}

#[tokio::test]
async fn a_server_whose_replies_have_another_shape_is_lost_and_the_reason_is_told() {
    for answer in ["+OK\r\n", ":7\r\n", "*1\r\n:7\r\n", "$-1\r\n", "$3\r\nabc\r\n", "?what\r\n"] {
        let store = RedisStore::connect(&Config::parse(&serve(answer).await).unwrap());
        let told = async {
            while store.health().last_error().is_none_or(|error| error.ends_with(UNREACHED)) {
                sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(PATIENCE, told).await.unwrap();
        let health = store.health();
        assert!(!health.state().allows_calls(), "{answer:?}: {health:?}");
        let error = health.last_error().unwrap();
        assert!(!error.contains("cannot log in"), "{answer:?}: {error}");
        if !answer.starts_with('?') {
            assert!(error.ends_with("the script's reply has another shape"), "{answer:?}: {error}");
        }
    }
}

#[tokio::test]
async fn a_server_that_answers_tries_well_and_requests_badly_is_lost_each_time() {
    // The time, which is all of the reply to a call without commands.
    let store =
        RedisStore::connect(&Config::parse(&serve("$8\r\n\x01\0\0\0\0\0\0\0\r\n").await).unwrap());
    assert!(store.ready(PATIENCE).await);
    let lost = async {
        while store.status().state.allows_calls() {
            assert!(store.decide(&plan(1)).await.is_err());
        }
    };
    tokio::time::timeout(PATIENCE, lost).await.unwrap();
    assert!(errors(&store, Reason::Malformed) >= 1);
    let error = store.health().last_error().unwrap();
    assert!(error.ends_with("the script's reply has another shape"), "{error}");
}
