use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tidegate_testkit::servers::{Cluster, Reply, Sentinels, Server};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::{Config, RedisStore};

/// Generous: what is tested is not how fast this machine is.
const PATIENCE: Duration = Duration::from_secs(20);
const HOUR: Option<Duration> = Some(Duration::from_secs(3_600));

/// A value, and how long it lasts.
type Kept = (Vec<u8>, Option<Duration>);

/// A node that keeps values by mark; what is empty is removed.
#[derive(Default)]
struct Node {
    marks: Mutex<BTreeMap<u128, Kept>>,
    own_load: AtomicU64,
    load: AtomicU64,
}

impl Node {
    fn set(&self, id: u128, value: &str) {
        self.marks.lock().unwrap().insert(id, (value.into(), None));
    }

    fn values(&self) -> Vec<(u128, String)> {
        let marks = self.marks.lock().unwrap();
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        marks.iter().map(|(id, (value, _))| (*id, text(value))).collect()
    }

    fn count(&self) -> usize {
        self.marks.lock().unwrap().len()
    }

    fn lasts(&self, id: u128) -> Option<Duration> {
        self.marks.lock().unwrap()[&id].1
    }
}

impl MarkReplica for Node {
    fn apply(&self, changes: Vec<ReplicatedMark>) {
        let mut marks = self.marks.lock().unwrap();
        for ReplicatedMark { id, value, lasts } in changes {
            if value.is_empty() {
                marks.remove(&id);
            } else {
                marks.insert(id, (value, lasts));
            }
        }
    }

    fn marks(&self) -> Box<dyn Iterator<Item = MarkChange> + Send + '_> {
        let marks = self.marks.lock().unwrap().clone();
        Box::new(marks.into_iter().map(|(id, (value, lasts))| MarkChange {
            id,
            operation: MarkOperation::SetIfLonger,
            value,
            lasts,
        }))
    }

    fn own_load_ppm(&self) -> Option<u64> {
        Some(self.own_load.load(Ordering::Relaxed))
    }

    fn apply_load(&self, ppm: u64) {
        self.load.store(ppm, Ordering::Relaxed);
    }
}

fn set(id: u128, value: &str, lasts: Option<Duration>) -> MarkChange {
    MarkChange { id, operation: MarkOperation::Set, value: value.into(), lasts }
}

fn removed(id: u128) -> MarkChange {
    MarkChange { id, operation: MarkOperation::Remove, value: Vec::new(), lasts: HOUR }
}

async fn node(url: &str) -> (RedisStore, Arc<Node>) {
    let store = RedisStore::connect(&Config::parse(url).unwrap());
    let node = Arc::<Node>::default();
    let mut completion = store.replicate_marks(Arc::clone(&node) as Arc<dyn MarkReplica>);
    timeout(PATIENCE, completion.wait_for(|completion| *completion)).await.unwrap().unwrap();
    (store, node)
}

async fn until(what: &str, met: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !met() {
        assert!(Instant::now() < deadline, "waited in vain until {what}");
        sleep(Duration::from_millis(5)).await;
    }
}

async fn knows(node: &Node, expected: &[(u128, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(id, value)| (*id, (*value).to_owned())).collect();
    until(&format!("{expected:?}"), || node.values() == expected).await;
}

fn number(reply: &Reply) -> i64 {
    match reply {
        Reply::Integer(number) => *number,
        other => panic!("{other:?}"),
    }
}

/// Runs a script on the keys of marks, without a node.
fn run(server: &Server, script: &crate::script::Script, arguments: &[&str]) -> Reply {
    let keys = ["head", "values", "changes", "ends", "loads"].map(|key| format!("tg:@marks:{key}"));
    let mut command = vec!["EVAL", script.text, "5"];
    command.extend(keys.iter().map(String::as_str));
    command.extend(arguments);
    server.command(&command).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_ended_makes_room_for_what_is_told() {
    let server = Server::start().unwrap();
    let push = |id, ms| run(&server, &protocol::PUSH, &["c", "e", "1", id, "s", ms, "ban"]);
    assert_eq!(number(&push("1", "50")), 0);
    until("there is room for another", || number(&push("2", "60000")) == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_node_marks_all_know_and_those_who_come_later() {
    let server = Server::start().unwrap();
    let ((first, _a), (_second, b)) = (node(&server.url()).await, node(&server.url()).await);
    first.publish_mark(set(1, "ban", HOUR));
    first.publish_mark(set(2, "for ever", None));
    knows(&b, &[(1, "ban"), (2, "for ever")]).await;
    assert!(b.lasts(1) <= HOUR && b.lasts(1) > Some(Duration::from_secs(3_000)));
    assert_eq!(b.lasts(2), None);
    let (_third, c) = node(&server.url()).await;
    assert_eq!(c.count(), 2, "it was told of everything at its start");
    first.publish_mark(removed(1));
    knows(&b, &[(2, "for ever")]).await;
    knows(&c, &[(2, "for ever")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_is_loaded_in_pages() {
    let server = Server::start().unwrap();
    let (first, _a) = node(&server.url()).await;
    for id in 0..3_000 {
        first.publish_mark(set(id, "ban", HOUR));
    }
    let (_second, b) = node(&server.url()).await;
    until("all are known", || b.count() == 3_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn long_marks_come_in_pages_that_arrive() {
    let server = Server::start().unwrap();
    let (first, _a) = node(&server.url()).await;
    let long = "x".repeat(100_000);
    for id in 0..20 {
        first.publish_mark(set(id, &long, HOUR));
    }
    let count = || number(&server.command(&["HLEN", "tg:@marks:values"]).unwrap());
    until("all are told", || count() == 20).await;
    let asked = ["", "0", "500", "e", "0", "n", "", "5000"];
    let Reply::Array(page) = run(&server, &protocol::PULL, &asked) else { panic!() };
    let Reply::Array(told) = &page[3] else { panic!() };
    assert!(told.len() <= 9 && number(&page[4]) == 1, "{}", told.len());
    let (_second, b) = node(&server.url()).await;
    until("all are known", || b.count() == 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_removed_is_remembered_for_as_long_as_it_would_have_held() {
    let server = Server::start().unwrap();
    let (first, _a) = node(&server.url()).await;
    let remove = |id| MarkChange { lasts: None, ..removed(id) };
    first.publish_mark(set(1, "short", Some(Duration::from_secs(60))));
    first.publish_mark(set(2, "for ever", None));
    let count = || number(&server.command(&["HLEN", "tg:@marks:values"]).unwrap());
    until("both are there", || count() == 2).await;
    for id in 1..=3 {
        first.publish_mark(remove(id));
    }
    until("all are removed", || count() == 3).await;
    let left = |id: u128| {
        let id = format!("{id:032x}");
        let score = server.command(&["ZSCORE", "tg:@marks:ends", &id]).unwrap();
        let ends_ms: u64 = score.text().parse().unwrap();
        let Reply::Array(now) = server.command(&["TIME"]).unwrap() else { panic!() };
        let now_s: u64 = now[0].text().parse().unwrap();
        ends_ms / 1_000 - now_s
    };
    assert!(left(1) <= 60, "{}", left(1));
    assert!(left(2) > 300 * 86_400, "{}", left(2));
    assert!(left(3) <= 3_600, "there was nothing: {}", left(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_two_nodes_mark_at_once_is_one_mark_that_lasts_the_longer() {
    let server = Server::start().unwrap();
    let ((first, a), (second, b)) = (node(&server.url()).await, node(&server.url()).await);
    let longer = |value: &str, seconds| MarkChange {
        operation: MarkOperation::SetIfLonger,
        ..set(7, value, Some(Duration::from_secs(seconds)))
    };
    first.publish_mark(longer("an hour", 3_600));
    second.publish_mark(longer("a minute", 60));
    for node in [&a, &b] {
        knows(node, &[(7, "an hour")]).await;
    }
    second.publish_mark(longer("two hours", 7_200));
    knows(&a, &[(7, "two hours")]).await;
    second.publish_mark(set(7, "an operator's", Some(Duration::from_secs(60))));
    knows(&a, &[(7, "an operator's")]).await;
    assert_eq!(number(&server.command(&["HLEN", "tg:@marks:values"]).unwrap()), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_that_are_over_leave_the_server_and_every_key_has_an_end() {
    let server = Server::start().unwrap();
    let (first, a) = node(&server.url()).await;
    a.own_load.store(1, Ordering::Relaxed);
    first.publish_mark(set(1, "short", Some(Duration::from_millis(50))));
    first.publish_mark(set(2, "long", HOUR));
    let count = || number(&server.command(&["HLEN", "tg:@marks:values"]).unwrap());
    until("one is left", || count() == 1).await;
    until("there is a load", || a.load.load(Ordering::Relaxed) == 1).await;
    for key in ["head", "values", "changes", "ends", "loads"] {
        let left = server.command(&["PTTL", &format!("tg:@marks:{key}")]).unwrap();
        assert!(number(&left) > 0, "{key}: {left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_changed_while_the_store_was_lost_is_told_when_it_is_back() {
    let server = Server::start().unwrap();
    let ((first, a), (_second, b)) = (node(&server.url()).await, node(&server.url()).await);
    a.set(1, "before");
    first.publish_mark(set(1, "before", HOUR));
    first.publish_mark(set(2, "pardoned", HOUR));
    knows(&b, &[(1, "before"), (2, "pardoned")]).await;
    server.kill().unwrap();
    a.set(3, "meanwhile");
    first.publish_mark(set(3, "meanwhile", HOUR));
    first.publish_mark(removed(2));
    // It comes back empty: what nodes know, they say anew.
    server.restart().unwrap();
    knows(&b, &[(1, "before"), (3, "meanwhile")]).await;
    let (_third, c) = node(&server.url()).await;
    knows(&c, &[(1, "before"), (3, "meanwhile")]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_lost_a_part_is_told_everything_anew() {
    let server = Server::start().unwrap();
    let (first, a) = node(&server.url()).await;
    for id in 1..=3 {
        a.set(id, "ban");
        first.publish_mark(set(id, "ban", HOUR));
    }
    let count = || number(&server.command(&["ZCARD", "tg:@marks:changes"]).unwrap());
    until("all are there", || count() == 3).await;
    for key in ["changes", "values", "head", "ends"] {
        server.command(&["DEL", &format!("tg:@marks:{key}")]).unwrap();
        let (_second, b) = node(&server.url()).await;
        until("all are known again", || b.count() == 3).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_nodes_know_the_largest_load() {
    let server = Server::start().unwrap();
    let ((_first, a), (second, b)) = (node(&server.url()).await, node(&server.url()).await);
    a.own_load.store(300_000, Ordering::Relaxed);
    b.own_load.store(900_000, Ordering::Relaxed);
    until("the larger is known", || a.load.load(Ordering::Relaxed) == 900_000).await;
    drop(second);
    until("who is gone has none", || a.load.load(Ordering::Relaxed) == 300_000).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn marks_are_shared_over_a_cluster() {
    let cluster = Cluster::start().unwrap();
    let seeds: Vec<String> = cluster.nodes().iter().map(|node| node.addr().to_string()).collect();
    let url = format!("redis+cluster://{}", seeds.join(","));
    let ((first, _a), (_second, b)) = (node(&url).await, node(&url).await);
    first.publish_mark(set(1, "ban", HOUR));
    knows(&b, &[(1, "ban")]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn marks_outlive_a_failover_and_are_shared_over_the_new_server() {
    let deployment = Sentinels::start(1).unwrap();
    let sentinel = deployment.sentinels()[0].addr();
    let url = format!("redis+sentinel://{sentinel}/{}", Sentinels::NAME);
    let ((store, one), (_other_store, other)) = (node(&url).await, node(&url).await);
    one.set(1, "before");
    store.publish_mark(set(1, "before", HOUR));
    knows(&other, &[(1, "before")]).await;
    // What was not replicated is said anew by those who know it.
    deployment.servers()[1].pause().unwrap();
    one.set(2, "unreplicated");
    store.publish_mark(set(2, "unreplicated", HOUR));
    knows(&other, &[(1, "before"), (2, "unreplicated")]).await;
    deployment.servers()[0].kill().unwrap();
    deployment.servers()[1].resume().unwrap();
    deployment.fail_over().unwrap();
    one.set(3, "after");
    store.publish_mark(set(3, "after", HOUR));
    let all = [(1, "before"), (2, "unreplicated"), (3, "after")];
    knows(&other, &all).await;
    let (_late_store, late) = node(&url).await;
    knows(&late, &all).await;
}

#[tokio::test]
async fn what_was_changed_just_before_the_end_is_told() {
    let server = Server::start().unwrap();
    let (one, _) = node(&server.url()).await;
    one.publish_mark(set(1, "a", HOUR));
    one.close().await;
    drop(one);
    let (_store, other) = node(&server.url()).await;
    assert_eq!(other.values(), [(1, "a".to_owned())]);
}
