use std::fs;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tidegate::engine::marks::Subject;
use tidegate::engine::store::Memory;
use tidegate::{HashKey, Limiter, NewMark, Policy, Request};

use super::*;
use crate::engine::DaemonStore;
use crate::engine::tests::{check, peek};

const SECRET: HashKey = HashKey::new([1; 16]);

fn app_with(memory: Memory) -> App {
    let policy = "{ tidegate: 1, name: a, limits: { all: { by: user, total: 1000 } } }";
    let mut app = App::new(Policy::parse("a.yaml", policy).unwrap());
    let policy = Policy::parse("a.yaml", policy).unwrap();
    let limiter = Limiter::builder().policy(policy).clock(app.clock.clone()).hash_key(SECRET);
    app.engine = limiter.store(DaemonStore::Memory(memory)).build().unwrap();
    app
}

/// An app with what was saved in a directory, and where that goes on.
fn loaded(path: &Path) -> (Arc<App>, StateDir, Journals) {
    loaded_by(app_with(Memory::new()), path)
}

fn loaded_by(app: App, path: &Path) -> (Arc<App>, StateDir, Journals) {
    let (app, state) = (Arc::new(app), StateDir::open(path).unwrap());
    let now = app.now();
    let counters =
        state.load_counters(app.engine.store().memory().unwrap(), &SECRET, now).unwrap().0;
    let marks = state.load_marks(app.engine.marks(), &SECRET, now).unwrap().0;
    (app, state, Journals { counters: Some(counters), marks })
}

/// A worker that nothing but a test drives.
fn worker(path: &Path) -> (Arc<App>, WriterThread, Sender<()>) {
    worker_of(loaded(path))
}

fn worker_of(loaded: (Arc<App>, StateDir, Journals)) -> (Arc<App>, WriterThread, Sender<()>) {
    let (app, state, journals) = loaded;
    let (stop, told) = channel();
    (Arc::clone(&app), WriterThread::new(app, state, journals, told), stop)
}

/// What would be there if the process were killed now.
fn left_by_a_kill(path: &Path) -> TempDir {
    let killed = tempfile::tempdir().unwrap();
    for file in fs::read_dir(path).unwrap().map(|file| file.unwrap().path()) {
        fs::copy(&file, killed.path().join(file.file_name().unwrap())).unwrap();
    }
    killed
}

fn spend(app: &App, user: &str) {
    let request = Request::new("GET", "/").user(user);
    assert!(check(&app.engine, &request).unwrap().is_allowed());
}

fn spent(app: &App, user: &str) -> u64 {
    let decision = peek(&app.engine, &Request::new("GET", "/").user(user)).unwrap();
    1_000 - decision.limits[0].available.whole()
}

fn ban(app: &App, user: &str) {
    app.engine.ban(&NewMark::new(Subject::user(user)).lasts(Duration::from_secs(3_600))).unwrap();
}

#[test]
fn what_changes_is_saved_while_it_runs_and_everything_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (app, state, journals) = loaded(folder.path());
    let (health, clock) = (Arc::clone(state.health()), app.clock.clone());
    let saver = StateWriter::start(Arc::clone(&app), state, journals).unwrap();
    spend(&app, "u1");
    ban(&app, "u2");
    let done_us = app.now().unix_us;
    let given_up_us = clock.steady_us() + 60_000_000;
    while health.status().saved_unix_us.is_none_or(|saved_us| saved_us < done_us) {
        assert!(clock.steady_us() < given_up_us, "never saved");
        thread::yield_now();
    }
    let names = |name: &str| folder.path().join(name).exists();
    assert!(["counters", "counters.log.0", "marks", "marks.log.0"].into_iter().all(names));
    assert!(health.status().written_bytes > 0);
    spend(&app, "u1");
    assert_eq!(saver.finish().unwrap(), SaveSummary { keys: 1, marks: 1 });
    assert!(!names("counters.log.0") && !names("marks.log.0"));
    let (app, ..) = loaded(folder.path());
    assert_eq!((spent(&app, "u1"), app.engine.marks().count(MarkKind::Ban)), (2, 1));
}

#[test]
fn a_disk_that_fails_is_told_and_all_is_saved_once_it_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let (app, mut worker, _stop) = worker(folder.path());
    let health = Arc::clone(worker.state.health());
    spend(&app, "u1");
    worker.save_changes();
    let saved = health.status().saved_unix_us;
    assert!(saved.is_some() && health.status().failures.is_empty());
    worker.snapshot_counters().unwrap();
    // What stands in the way of a log, and of a snapshot.
    let obstacles = ["counters.log.tmp", "counters.tmp"].map(|name| folder.path().join(name));
    obstacles.iter().for_each(|path| fs::create_dir(path).unwrap());
    spend(&app, "u1");
    ban(&app, "u2");
    worker.save_changes();
    worker.write_snapshots();
    let present = health.status();
    assert_eq!((present.failures.len(), present.saved_unix_us), (1, saved));
    assert_eq!(present.failures[0].0, "counters");
    assert!(folder.path().join("marks.log.0").exists(), "the others are saved all the same");
    spend(&app, "u1");
    worker.save_changes();
    obstacles.iter().for_each(|path| fs::remove_dir(path).unwrap());
    worker.write_snapshots();
    assert!(!worker.counters.as_ref().unwrap().is_whole(), "it waits before it tries again");
    worker.snapshot_us = 0;
    worker.write_snapshots();
    assert_eq!(health.status().failures, []);
    worker.save_changes();
    assert!(health.status().saved_unix_us > saved);
    drop(worker);
    assert_eq!(spent(&loaded(folder.path()).0, "u1"), 3);
}

#[test]
fn a_flood_of_keys_that_go_holds_up_neither_changes_nor_a_snapshot() {
    let folder = tempfile::tempdir().unwrap();
    let small = || app_with(Memory::with_max_keys(10));
    let (app, mut worker, _stop) = worker_of(loaded_by(small(), folder.path()));
    // It has used more than any other, so that it never has to go.
    (0..20).for_each(|_| spend(&app, "busy"));
    for round in 0..3 {
        let snapshot = worker.counters.as_mut().unwrap().begin_snapshot(app.now()).unwrap();
        (0..70_000).for_each(|user| spend(&app, &format!("{round} {user}")));
        spend(&app, "busy");
        worker.save_changes();
        let journal = worker.counters.as_mut().unwrap();
        assert!(journal.is_whole() && journal.accepts());
        let (again, ..) = loaded_by(small(), left_by_a_kill(folder.path()).path());
        assert_eq!(spent(&again, "busy"), round + 21);
        assert_eq!(again.engine.store().memory().unwrap().keys(), 10);
        drop(snapshot);
        assert_eq!(worker.snapshot_counters().unwrap(), Some(10));
    }
}

#[test]
fn counters_that_cannot_be_saved_take_no_bans_with_them() {
    let folder = tempfile::tempdir().unwrap();
    let (app, worker, _stop) = self::worker(folder.path());
    ban(&app, "u1");
    fs::create_dir(folder.path().join("counters.tmp")).unwrap();
    let error = worker.finish().unwrap_err().to_string();
    assert!(error.contains("cannot save counters to the state directory"), "{error}");
    let (app, worker, _stop) = self::worker(folder.path());
    assert_eq!(app.engine.marks().count(MarkKind::Ban), 1);
    fs::create_dir(folder.path().join("marks.tmp")).unwrap();
    let error = worker.finish().unwrap_err().to_string();
    assert!(error.contains("save counters") && error.contains("save marks"), "{error}");
}

#[test]
fn changes_are_saved_while_a_snapshot_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (app, mut worker, _stop) = worker(folder.path());
    for user in 0..3 * LOOK_EVERY {
        spend(&app, &format!("user {user}"));
    }
    worker.save_changes();
    worker.due_us = 0;
    spend(&app, "user 0");
    assert_eq!(worker.snapshot_counters().unwrap(), Some(3 * LOOK_EVERY as u64));
    assert!(worker.due_us > 0 && folder.path().join("counters.log.1").exists());
    drop(worker);
    let (app, ..) = loaded(folder.path());
    assert_eq!((spent(&app, "user 0"), spent(&app, "user 1")), (2, 1));
    assert_eq!(app.engine.store().memory().unwrap().keys(), 3 * LOOK_EVERY);
}

#[test]
fn the_first_change_may_come_while_the_first_snapshot_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let (app, mut worker, _stop) = worker(folder.path());
    // Something went missing before anything was written.
    worker.counters.as_mut().unwrap().mark_broken();
    let snapshot = worker.counters.as_mut().unwrap().begin_snapshot(app.now()).unwrap();
    spend(&app, "u1");
    worker.save_changes();
    let journal = worker.counters.as_mut().unwrap();
    assert!(!journal.is_whole(), "not before the snapshot is there");
    assert_eq!(spent(&loaded(left_by_a_kill(folder.path()).path()).0, "u1"), 1);
    assert_eq!(journal.finish_snapshot(app.now(), snapshot).unwrap(), 0);
    assert!(journal.is_whole());
    drop(worker);
    assert_eq!(spent(&loaded(folder.path()).0, "u1"), 1);
}

#[test]
fn a_snapshot_that_is_under_way_does_not_hold_up_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let (app, mut worker, stop) = worker(folder.path());
    spend(&app, "u1");
    worker.save_changes();
    drop(stop);
    assert_eq!(worker.snapshot_counters().unwrap(), None);
    assert!(worker.stopping);
    assert_eq!(worker.finish().unwrap(), SaveSummary { keys: 1, marks: 0 });
    assert_eq!(spent(&loaded(folder.path()).0, "u1"), 1);
}

#[test]
fn marks_are_read_page_by_page() {
    let app = app_with(Memory::new());
    let count = PAGE + 10;
    for user in 0..count {
        ban(&app, &format!("user {user}"));
    }
    let mut ids: Vec<Key> = all_marks(app.engine.marks(), app.now()).map(|mark| mark.id).collect();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

#[test]
fn nothing_is_missed_that_is_decided_while_changes_and_snapshots_are_written() {
    const THREADS: usize = 3;
    const EACH: usize = 2_000;
    const USERS: usize = 50;
    let folder = tempfile::tempdir().unwrap();
    let (app, mut worker, _stop) = worker(folder.path());
    let spenders: Vec<_> = (0..THREADS)
        .map(|thread| {
            let app = Arc::clone(&app);
            thread::spawn(move || {
                for index in 0..EACH {
                    spend(&app, &format!("user {}", (thread + index) % USERS));
                }
            })
        })
        .collect();
    while spenders.iter().any(|spender| !spender.is_finished()) {
        worker.save_changes();
        worker.due_us = 0;
        worker.snapshot_counters().unwrap();
    }
    spenders.into_iter().for_each(|spender| spender.join().unwrap());
    worker.save_changes();
    drop(worker);
    let (again, ..) = loaded(folder.path());
    for user in (0..USERS).map(|user| format!("user {user}")) {
        assert_eq!(spent(&again, &user), spent(&app, &user), "{user}");
        assert_eq!(spent(&app, &user), (THREADS * EACH / USERS) as u64);
    }
}
