//! Keeping up with a cluster: who has which slot, as any of its servers says.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::topology::{Range, Topology};
use crate::config::Server;
use crate::connection::{Failure, Reason};
use crate::slot::SLOTS;

/// How often it is asked while all is well.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How often while a server is lost: another may have taken its place.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long it is at least from one time to the next, whatever points to a change.
const LOOK_MIN: Duration = Duration::from_millis(100);
/// How long one server may take to tell.
const TELLS_WITHIN: Duration = Duration::from_millis(500);

impl Topology {
    /// Keeps up with a cluster for as long as it is let.
    pub(super) async fn keep_up(self: Arc<Self>) {
        loop {
            match self.look().await {
                Ok(ranges) => self.install(&ranges),
                Err(failure) => self.cannot_tell(&failure),
            }
            sleep(LOOK_MIN).await;
            self.until_stale().await;
        }
    }

    async fn until_stale(&self) {
        let (mut news, latest) = (self.common.news.subscribe(), Instant::now() + LOOK_EVERY);
        loop {
            let all_well = self.status().state.asks();
            let until = if all_well { latest } else { Instant::now() + LOOK_AGAIN };
            tokio::select! {
                () = self.stale.notified() => return,
                () = sleep_until(until) => return,
                _ = news.changed() => {}
            }
            if all_well && !self.status().state.asks() {
                return;
            }
        }
    }

    /// Asks one server after the other until one tells.
    async fn look(&self) -> Result<Vec<Range>, Failure> {
        let mut servers = self.known();
        // A server that is lost must not be the first each time.
        fastrand::shuffle(&mut servers);
        let seeds: Vec<&Server> =
            self.seeds.iter().filter(|seed| !servers.contains(seed)).collect();
        servers.extend(seeds.into_iter().cloned());
        let mut failed = Failure::new(Reason::Connection, true, "there is nobody to ask");
        for server in &servers {
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            match self.dialer.ask(server, &command, TELLS_WITHIN).await {
                Ok(reply) => match ranges(&reply, server) {
                    Some(ranges) if !ranges.is_empty() => return Ok(ranges),
                    _ => failed = Failure::unreadable(format!("{server} knows of no slots")),
                },
                Err(failure) => {
                    failed = failure;
                    failed.error.detail = format!("{server}: {}", failed.error.detail);
                }
            }
        }
        Err(failed)
    }
}

/// The reply to `CLUSTER SLOTS`: first and last slot, then the servers, of which the first is the
/// master. A server without an address is the one that was asked.
fn ranges(reply: &Value, asked: &Server) -> Option<Vec<Range>> {
    let Value::Array(ranges) = reply else { return None };
    ranges.iter().map(|range| read_range(range, asked)).collect()
}

fn read_range(range: &Value, asked: &Server) -> Option<Range> {
    let Value::Array(parts) = range else { return None };
    let [Value::Int(first), Value::Int(last), servers @ ..] = parts.as_slice() else { return None };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
    let mut servers = servers.iter().map(|server| read_server(server, asked));
    let master = servers.next()??;
    // One replica that cannot be read is one less to ask.
    let replicas = servers.flatten().collect();
    Some(Range { first: slot(first)?, last: slot(last)?, master, replicas })
}

fn read_server(server: &Value, asked: &Server) -> Option<Server> {
    let Value::Array(parts) = server else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8(host.clone()).ok()?
        }
        _ => asked.host.clone(),
    };
    Some(Server { host, port: u16::try_from(*port).ok().filter(|port| *port != 0)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn server(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), text("id"), Value::Array(Vec::new())])
    }

    fn range(first: i64, last: i64, servers: Vec<Value>) -> Value {
        Value::Array([vec![Value::Int(first), Value::Int(last)], servers].concat())
    }

    #[test]
    fn who_has_what_is_read() {
        let asked = Server { host: "seed".to_owned(), port: 1 };
        let at = |host: &str, port| Server { host: host.to_owned(), port };
        let reply = Value::Array(vec![
            range(0, 5, vec![server(text("a"), 7000), server(text("b"), 7001)]),
            range(6, 16_383, vec![server(Value::Nil, 7002), server(text(""), 0)]),
        ]);
        let expected = [
            Range { first: 0, last: 5, master: at("a", 7000), replicas: vec![at("b", 7001)] },
            Range { first: 6, last: 16_383, master: at("seed", 7002), replicas: Vec::new() },
        ];
        assert_eq!(ranges(&reply, &asked).unwrap(), expected);
        for broken in [
            Value::Nil,
            Value::Array(vec![range(0, 16_384, vec![server(text("a"), 7000)])]),
            Value::Array(vec![range(0, 1, Vec::new())]),
            Value::Array(vec![range(0, 1, vec![server(text("a"), 70_000)])]),
        ] {
            assert_eq!(ranges(&broken, &asked), None);
        }
    }
}
