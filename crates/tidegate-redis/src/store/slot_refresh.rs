//! Keeps the slot map of a cluster current: any of its servers can be asked for it.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep, sleep_until};

use super::topology::{SlotRange, Topology};
use crate::config::Server;
use crate::connection::Failure;
use crate::slot::SLOTS;

/// How often the map is read while all servers answer.
const REFRESH_EVERY: Duration = Duration::from_secs(30);
/// How often while a server is lost: a replica may have taken its place.
const REFRESH_LOST_EVERY: Duration = Duration::from_millis(250);
/// The shortest time between two refreshes.
const REFRESH_MIN: Duration = Duration::from_millis(100);
/// How long one server may take to answer.
const TIMEOUT: Duration = Duration::from_millis(500);

impl Topology {
    /// Refreshes the map until the task is dropped.
    pub(super) async fn keep_slots_current(self: Arc<Self>) {
        loop {
            match self.fetch_slots().await {
                Ok(ranges) => self.install(&ranges),
                Err(failure) => self.note_refresh_failure(&failure),
            }
            sleep(REFRESH_MIN).await;
            self.wait_until_stale().await;
        }
    }

    async fn wait_until_stale(&self) {
        let (mut news, latest) = (self.deployment.news.subscribe(), Instant::now() + REFRESH_EVERY);
        loop {
            let all_answer = self.status().state.allows_calls();
            let until = if all_answer { latest } else { Instant::now() + REFRESH_LOST_EVERY };
            tokio::select! {
                () = self.stale.notified() => return,
                () = sleep_until(until) => return,
                _ = news.changed() => {}
            }
            if all_answer && !self.status().state.allows_calls() {
                return;
            }
        }
    }

    /// Asks one server after the other until one answers.
    async fn fetch_slots(&self) -> Result<Vec<SlotRange>, Failure> {
        let mut servers = self.servers();
        // A server that is lost must not be the first each time.
        fastrand::shuffle(&mut servers);
        let seeds: Vec<&Server> =
            self.seeds.iter().filter(|seed| !servers.contains(seed)).collect();
        servers.extend(seeds.into_iter().cloned());
        let mut last_failure = Failure::no_server();
        for server in &servers {
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            match self.dialer.ask(server, &command, TIMEOUT).await {
                Ok(reply) => match read_ranges(&reply, server) {
                    Some(ranges) if !ranges.is_empty() => return Ok(ranges),
                    _ => last_failure = Failure::unreadable(format!("{server} knows of no slots")),
                },
                Err(failure) => {
                    last_failure = failure;
                    let detail = &mut last_failure.error.detail;
                    *detail = format!("{server}: {detail}");
                }
            }
        }
        Err(last_failure)
    }
}

/// Reads the reply to `CLUSTER SLOTS`: first and last slot, then the servers, of which the first is the
/// primary. A server without an address is the one that was asked.
fn read_ranges(reply: &Value, asked: &Server) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else { return None };
    ranges.iter().map(|range| read_range(range, asked)).collect()
}

fn read_range(range: &Value, asked: &Server) -> Option<SlotRange> {
    let Value::Array(fields) = range else { return None };
    let [Value::Int(first), Value::Int(last), servers @ ..] = fields.as_slice() else {
        return None;
    };
    let slot = |number: &i64| u16::try_from(*number).ok().filter(|slot| *slot < SLOTS);
    let mut servers = servers.iter().map(|server| read_server(server, asked));
    let primary = servers.next()??;
    // A replica that cannot be read is left out.
    let replicas = servers.flatten().collect();
    Some(SlotRange { first: slot(first)?, last: slot(last)?, primary, replicas })
}

fn read_server(server: &Value, asked: &Server) -> Option<Server> {
    let Value::Array(fields) = server else { return None };
    let [host, Value::Int(port), ..] = fields.as_slice() else { return None };
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
    fn a_slot_map_is_read() {
        let asked = Server { host: "seed".to_owned(), port: 1 };
        let at = |host: &str, port| Server { host: host.to_owned(), port };
        let reply = Value::Array(vec![
            range(0, 5, vec![server(text("a"), 7000), server(text("b"), 7001)]),
            range(6, 16_383, vec![server(Value::Nil, 7002), server(text(""), 0)]),
        ]);
        let expected = [
            SlotRange { first: 0, last: 5, primary: at("a", 7000), replicas: vec![at("b", 7001)] },
            SlotRange { first: 6, last: 16_383, primary: at("seed", 7002), replicas: Vec::new() },
        ];
        assert_eq!(read_ranges(&reply, &asked).unwrap(), expected);
        for broken in [
            Value::Nil,
            Value::Array(vec![range(0, 16_384, vec![server(text("a"), 7000)])]),
            Value::Array(vec![range(0, 1, Vec::new())]),
            Value::Array(vec![range(0, 1, vec![server(text("a"), 70_000)])]),
        ] {
            assert_eq!(read_ranges(&broken, &asked), None);
        }
    }
}
