//! The log as its reader sees it.

use std::sync::{Arc, Mutex};

use serde_json::Value;
use tidegate::clock::{FakeClock, SystemClock};
use tidegate::engine::store::Memory;
use tidegate::{HashKey, Limiter, Policy, Request};

use super::*;
use crate::engine::DaemonStore;
use crate::engine::tests::check;

const FIELDS: [&str; 16] = [
    "timestamp",
    "event",
    "operation",
    "limit",
    "algorithm",
    "tier",
    "quota",
    "window_ms",
    "used",
    "retry_after_ms",
    "reset_ms",
    "status",
    "user",
    "ip",
    "key",
    "request_id",
];

#[derive(Clone, Default)]
struct Out(Arc<Mutex<Vec<u8>>>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a log with these settings holds after something was done with it.
fn logged(settings: LogSettings, act: impl FnOnce(&Log)) -> Vec<String> {
    let out = Out::default();
    let (log, flush) = Log::start(settings, out.clone(), SystemClock::new()).unwrap();
    act(&log);
    drop(flush);
    let bytes = out.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap().lines().map(str::to_owned).collect()
}

fn json(level: LevelFilter, identities: bool) -> LogSettings {
    LogSettings { format: LogFormat::Json, level, identities }
}

fn engine() -> Engine {
    let text = "{tidegate: 1, name: api, block: {ips: [198.51.100.0/24]},
        limits: {a: {by: user, sliding_window: 2/min}}}";
    let policy = Policy::parse("p.yaml", text).unwrap_or_else(|errors| panic!("{errors}"));
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let secret = HashKey::new([7; 16]);
    let limiter = Limiter::builder().policy(policy).clock(clock).hash_key(secret);
    limiter.store(DaemonStore::Memory(Memory::new())).build().unwrap()
}

fn request(user: &str) -> Request<'_> {
    Request::new("GET", "/").user(user).ip([192, 0, 2, 1].into())
}

/// Decides three requests of a user, of which the last is refused.
fn three(log: &Log, user: &str) {
    let (engine, request) = (engine(), request(user));
    for _ in 0..3 {
        let decision = check(&engine, &request).unwrap();
        log.decision(&engine, &decision, &engine.context(&request).unwrap(), &RequestId::random());
    }
}

fn object(line: &str) -> serde_json::Map<String, Value> {
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))
}

#[test]
fn a_refusal_is_one_object_with_exactly_the_documented_fields() {
    let lines = logged(json(LevelFilter::INFO, true), |log| three(log, "u1"));
    assert_eq!(lines.len(), 1, "{lines:?}");
    let object = object(&lines[0]);
    let names: Vec<&str> = object.keys().map(String::as_str).collect();
    let (mut found, mut expected) = (names, FIELDS.to_vec());
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
    for (name, value) in [
        ("timestamp", "\"2026-01-05T09:00:00.000000Z\""),
        ("event", "\"limited\""),
        ("operation", "\"default\""),
        ("limit", "\"a\""),
        ("algorithm", "\"sliding_window\""),
        ("quota", "2"),
        ("window_ms", "60000"),
        ("used", "2"),
        ("retry_after_ms", "60000"),
        ("reset_ms", "60000"),
        ("status", "429"),
        ("user", "\"u1\""),
        ("ip", "\"192.0.2.1\""),
    ] {
        assert_eq!(object[name].to_string(), value, "{name}");
    }
}

#[test]
fn identities_are_hashed_unless_asked_for() {
    let lines = logged(json(LevelFilter::INFO, false), |log| three(log, "jane-doe"));
    assert!(!lines[0].contains("jane-doe") && !lines[0].contains("192.0.2"), "{}", lines[0]);
    let object = object(&lines[0]);
    for name in ["user", "ip", "key"] {
        assert!(object[name].as_str().is_some_and(|hash| hash.len() >= 16), "{name}");
    }
}

#[test]
fn a_blocked_address_has_no_limit_to_name() {
    let lines = logged(json(LevelFilter::INFO, true), |log| {
        let (engine, request) = (engine(), request("u1").ip([198, 51, 100, 9].into()));
        let decision = check(&engine, &request).unwrap();
        log.decision(&engine, &decision, &engine.context(&request).unwrap(), &RequestId::random());
    });
    let object = object(&lines[0]);
    assert_eq!(object["event"], "blocked");
    assert_eq!(object["ip"], "198.51.100.9");
    for name in ["limit", "algorithm", "quota", "used", "retry_after_ms", "key"] {
        assert!(object[name].is_null(), "{name}");
    }
}

#[test]
fn what_passes_is_logged_at_debug_and_nothing_below_the_level() {
    let count = |level| logged(json(level, true), |log| three(log, "u1")).len();
    assert_eq!(count(LevelFilter::DEBUG), 3);
    assert_eq!(count(LevelFilter::INFO), 1);
    assert_eq!(count(LevelFilter::WARN), 0);
}

#[test]
fn a_user_cannot_forge_lines_or_fields() {
    let user = "x\"}\n{\"event\":\"allowed\"} limit=\"b\" \u{1b}[2J";
    for format in [LogFormat::Json, LogFormat::Text] {
        let settings = LogSettings { format, ..json(LevelFilter::INFO, true) };
        let lines = logged(settings, |log| three(log, user));
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(!lines[0].chars().any(char::is_control), "{lines:?}");
        if format == LogFormat::Json {
            assert_eq!(object(&lines[0])["user"], user);
        } else {
            assert!(
                lines[0].contains(r#" event="limited" operation="default" limit="a" "#),
                "{lines:?}"
            );
            assert!(lines[0].contains(r#"limit=\"b\""#), "{lines:?}");
        }
    }
}

#[test]
fn events_stay_on_one_line_and_other_crates_are_quiet() {
    for format in [LogFormat::Json, LogFormat::Text] {
        let settings = LogSettings { format, ..json(LevelFilter::DEBUG, true) };
        let lines = logged(settings, |log| {
            tracing::subscriber::with_default(log.subscriber(), || {
                let error =
                    StoreError { transient: true, detail: "a\nb\u{1b}c\u{9b}\u{7f}".to_owned() };
                store_failed(&error, "nothing follows");
                tracing::info!(target: "hyper", "chatter");
            });
        });
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(!lines[0].chars().any(char::is_control), "{lines:?}");
        assert!(lines[0].contains("ERROR") && lines[0].contains("store_failed"), "{lines:?}");
        assert!(lines[0].contains("nothing follows"), "{lines:?}");
        if format == LogFormat::Json {
            object(&lines[0]);
        }
    }
}

#[test]
fn every_line_of_text_has_time_level_and_message_and_no_path_of_a_module() {
    let settings = LogSettings { format: LogFormat::Text, ..json(LevelFilter::DEBUG, true) };
    let lines = logged(settings, |log| {
        three(log, "u1");
        tracing::subscriber::with_default(log.subscriber(), || {
            tracing::warn!(event = "ban_set", subject = "u1", "banned");
        });
    });
    let mut forms: Vec<String> = Vec::new();
    for line in &lines {
        let (time, rest) = line.split_once(' ').unwrap();
        assert_eq!((time.len(), &time[26..]), (27, "Z"), "{line}");
        assert!(!line.contains("::"), "{line}");
        forms.push(rest.chars().take(34).collect());
    }
    let dropped = dropped_line(LogFormat::Text, 1_767_603_600_000_000, 7);
    assert!(dropped[27..].starts_with("  WARN log lines dropped"), "{dropped}");
    let passed = r#"DEBUG passed event="allowed" opera"#;
    let refused = r#" INFO refused event="limited" oper"#;
    assert_eq!(forms, [passed, passed, refused, r#" WARN banned event="ban_set" subje"#]);
}

#[test]
fn dropped_lines_are_told_in_either_format() {
    let told = dropped_line(LogFormat::Json, 1_767_603_600_000_000, 7);
    assert_eq!(object(&told)["dropped"], 7);
    let told = dropped_line(LogFormat::Text, 1_767_603_600_000_000, 7);
    assert!(told.starts_with("2026-01-05T09:00:00"), "{told}");
    assert!(told.ends_with(" event=\"log_dropped\" dropped=7\n"), "{told}");
}

#[test]
fn what_another_crate_says_a_hundred_times_is_logged_once_a_second() {
    let lines = logged(LogSettings::default(), |log| {
        tracing::subscriber::with_default(log.subscriber(), || {
            for _ in 0..100 {
                tracing::warn!(target: "h2::proto", "recv PING ack that we never sent");
                tracing::warn!(target: "tidegate_server::listen", "ours");
            }
            tracing::warn!(target: "h2::proto", "something else");
        });
    });
    let count = |text: &str| lines.iter().filter(|line| line.contains(text)).count();
    assert!((1..10).contains(&count("PING ack")), "{}", count("PING ack"));
    assert_eq!((count("ours"), count("something else")), (100, 1));
}
