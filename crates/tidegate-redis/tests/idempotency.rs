//! A batch that is sent twice is charged once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use redis::Connection;
use server::Server;
use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, total};
use tidegate::engine::plan::{Enforcement, Level, Mode, Plan};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::{Answer, StoreError};
use tidegate_redis::Time;
use tidegate_redis::script_store::ScriptStore;

const LIMIT: u64 = 10;

fn start() -> (Server, ScriptStore, Connection) {
    let mut server = Server::start();
    let store = ScriptStore::new(server.connect(), "tg:").unwrap();
    let admin = server.connect();
    (server, store, admin)
}

/// A charge of one on a total.
fn plan(name: &str) -> Plan {
    let level = Level {
        limit: 0,
        family: 0,
        key: Key(0),
        spec: Spec::Total(total::Spec { limit: Amount::from_units(LIMIT).unwrap() }),
        cost: Amount::ONE,
        refundable: false,
        reserved: false,
        leased: false,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    };
    let now = Now { steady_us: 0, unix_us: 0 };
    let (levels, names) = ([level].into_iter().collect(), vec![name.into()]);
    Plan { mode: Mode::Charge, now, holder: 1, levels, names }
}

/// Sends a batch of two.
fn send(store: &ScriptStore, lane: &str, number: u64) -> Result<Vec<Answer>, StoreError> {
    let plans = vec![plan("one"), plan("other")];
    let answers = store.decide_all(Time::Server, Some((lane, number)), plans)?;
    answers.into_iter().collect()
}

fn left(store: &ScriptStore) -> u64 {
    let peek = Plan { mode: Mode::Peek, ..plan("one") };
    let answer = store.decide_all(Time::Server, None, vec![peek]).unwrap().pop().unwrap().unwrap();
    answer.replies[0].reading.available.whole()
}

#[test]
fn a_repeated_batch_is_answered_as_before_and_changes_nothing() {
    let (_server, store, _admin) = start();
    let first = send(&store, "a", 1).unwrap();
    assert_eq!(send(&store, "a", 1).unwrap(), first);
    assert_eq!(left(&store), LIMIT - 1);
    let second = send(&store, "a", 2).unwrap();
    assert_ne!(second, first);
    assert_eq!(send(&store, "a", 2).unwrap(), second);
    assert_eq!(left(&store), LIMIT - 2);
}

#[test]
fn a_batch_from_before_the_last_is_an_error_and_changes_nothing() {
    let (_server, store, _admin) = start();
    send(&store, "a", 7).unwrap();
    let error = send(&store, "a", 6).unwrap_err();
    assert!(error.detail.contains("STALE"), "{error}");
    assert_eq!(left(&store), LIMIT - 1);
    send(&store, "a", 9).unwrap();
    assert_eq!(left(&store), LIMIT - 2);
}

#[test]
fn idempotency_keys_know_nothing_of_each_other() {
    let (_server, store, _admin) = start();
    for lane in ["a", "b"] {
        send(&store, lane, 1).unwrap();
    }
    assert_eq!(left(&store), LIMIT - 2);
}

#[test]
fn what_an_idempotency_key_holds_expires() {
    let (_server, store, mut admin) = start();
    send(&store, "a", 1).unwrap();
    let ttl_ms: i64 = redis::cmd("PTTL").arg("tg:@lane:a").query(&mut admin).unwrap();
    assert!((1..=12_000).contains(&ttl_ms), "{ttl_ms}");
}

#[test]
fn errors_of_single_commands_are_repeated_too() {
    let (_server, store, mut admin) = start();
    let () = redis::cmd("SET").arg("tg:other").arg("foreign").query(&mut admin).unwrap();
    let error = send(&store, "a", 1).unwrap_err();
    let () = redis::cmd("DEL").arg("tg:other").query(&mut admin).unwrap();
    assert_eq!(send(&store, "a", 1).unwrap_err(), error);
    assert_eq!(left(&store), LIMIT - 1);
}

#[test]
fn what_is_none_of_ours_in_the_place_of_an_idempotency_key_is_overwritten() {
    let (_server, store, mut admin) = start();
    let () = redis::cmd("SET").arg("tg:@lane:a").arg("mine").query(&mut admin).unwrap();
    let () = redis::cmd("RPUSH").arg("tg:@lane:b").arg("mine").query(&mut admin).unwrap();
    for lane in ["a", "b"] {
        let first = send(&store, lane, 1).unwrap();
        assert_eq!(send(&store, lane, 1).unwrap(), first);
    }
    assert_eq!(left(&store), LIMIT - 2);
}
