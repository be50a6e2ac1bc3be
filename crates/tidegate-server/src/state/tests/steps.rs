//! Snapshots, and a process that ends at any step.

use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::state::journal::Position;

/// What is in a directory, to be put back.
fn copied(dir: &StateDir) -> Vec<(String, Vec<u8>)> {
    files(dir)
        .into_iter()
        .map(|name| (name.clone(), fs::read(dir.path().join(name)).unwrap()))
        .collect()
}

fn put_back(dir: &StateDir, copy: &[(String, Vec<u8>)]) {
    for (name, bytes) in copy {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
}

#[test]
fn a_snapshot_takes_the_place_of_the_logs_and_a_crash_at_any_step_leaves_what_loads() {
    let (_scratch, dir) = scratch();
    let mut daemon = Daemon::start(&dir, START);
    for _ in 0..3 {
        daemon.spend("u1");
        daemon.tick().unwrap();
    }
    let (now, store) = (daemon.clock.now(), Arc::clone(&daemon.store));
    let mut snapshot = daemon.journal().begin_snapshot(now).unwrap();
    // What another process finds if this one ends here.
    let spent = |user: &str| {
        let (_scratch, other) = scratch();
        put_back(&other, &copied(&dir));
        Daemon::start(&other, START + 1).spent(user)
    };
    assert_eq!(spent("u1"), 3, "begun");
    for saved in store.export(now) {
        snapshot.record(now, &SavedChange::Set(saved)).unwrap();
    }
    daemon.spend("u1");
    daemon.spend("u2");
    daemon.tick().unwrap();
    assert_eq!((spent("u1"), spent("u2")), (4, 1), "what changed meanwhile is in the next log");
    let before = copied(&dir);
    assert_eq!(daemon.journal().finish_snapshot(now, snapshot).unwrap(), 7);
    assert_eq!(snapshot_and_logs(&dir), ["counters", "counters.log.1"]);
    assert_eq!((spent("u1"), spent("u2")), (4, 1), "in its place");
    let logs: Vec<_> = before.iter().filter(|(name, _)| name.contains(".log.")).cloned().collect();
    put_back(&dir, &logs);
    fs::write(dir.path().join("counters.tmp"), b"half").unwrap();
    fs::write(dir.path().join("counters.log.tmp"), b"half").unwrap();
    assert_eq!((spent("u1"), spent("u2")), (4, 1), "before the logs are removed");
    daemon.spend("u2");
    daemon.tick().unwrap();
    assert_eq!((spent("u1"), spent("u2")), (4, 2));
    daemon.write_snapshot();
    assert_eq!(snapshot_and_logs(&dir), ["counters", "counters.log.tmp"], "what was left is gone");
    assert_eq!((spent("u1"), spent("u2")), (4, 2));
}

#[test]
fn a_snapshot_is_due_when_the_logs_have_outgrown_it_or_are_many() {
    let (_scratch, dir) = scratch();
    let mut daemon = Daemon::start(&dir, START);
    daemon.spend("u1");
    daemon.tick().unwrap();
    assert!(!daemon.journal().wants_snapshot());
    let kept = |position: Position| {
        let names = FileNames::counters(dir.path());
        Journal::<SavedChange>::new(names, 1, position).wants_snapshot()
    };
    let mib = 1 << 20;
    let at = |snapshot_bytes, logged| Position { snapshot_bytes, logged, ..Position::default() };
    assert!(!kept(at(10, (mib, 1))), "too short to be worth it");
    assert!(kept(at(mib, (9 * mib, 1))));
    assert!(!kept(at(3 * mib, (9 * mib, 1))));
    assert!(kept(at(3 * mib, (13 * mib, 1))));
    assert!(kept(at(3 * mib, (10, 9))), "a crash after the other");
}

#[test]
fn processes_that_crash_one_after_the_other_leave_what_loads_until_a_snapshot_is_written() {
    let (_scratch, dir) = scratch();
    for run in 0..10 {
        let mut daemon = Daemon::start(&dir, START + run);
        assert_eq!(daemon.spent("u1"), run);
        assert_eq!(daemon.journal().wants_snapshot(), run > 8);
        daemon.spend("u1");
        daemon.tick().unwrap();
    }
    assert_eq!(snapshot_and_logs(&dir).len(), 11);
    Daemon::start(&dir, START + 10).write_snapshot();
    assert_eq!(snapshot_and_logs(&dir), ["counters"]);
    assert_eq!(Daemon::start(&dir, START + 10).spent("u1"), 10);
}

#[test]
fn what_could_not_be_written_is_in_the_next_snapshot() {
    let (_scratch, dir) = scratch();
    let mut daemon = Daemon::start(&dir, START);
    daemon.spend("u1");
    daemon.tick().unwrap();
    daemon.write_snapshot();
    // What stands in the way of a log that is begun.
    let obstacle = dir.path().join("counters.log.tmp");
    fs::create_dir(&obstacle).unwrap();
    daemon.spend("u1");
    daemon.tick().unwrap_err();
    assert!(!daemon.journal().accepts() && daemon.journal().wants_snapshot());
    fs::remove_dir(&obstacle).unwrap();
    assert_eq!(Daemon::start(&dir, START + 1).spent("u1"), 1, "what was saved before");
    daemon.write_snapshot();
    assert!(daemon.journal().is_whole() && !daemon.journal().wants_snapshot());
    daemon.spend("u1");
    daemon.tick().unwrap();
    assert_eq!(Daemon::start(&dir, START + 1).spent("u1"), 3);
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Spend(usize),
    Wait(u64),
    Tick,
    Snapshot,
    /// The process is killed after a look, and started again after a while.
    Kill(u64),
}

const USERS: [&str; 3] = ["u1", "u2", "u3"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_daemon_that_is_killed_again_and_again_decides_as_one_that_never_was(
        steps in prop::collection::vec(prop_oneof![
            4 => (0..USERS.len()).prop_map(Step::Spend),
            1 => (0..70_u64).prop_map(Step::Wait),
            2 => Just(Step::Tick),
            1 => Just(Step::Snapshot),
            1 => (0..10_u64).prop_map(Step::Kill),
        ], 1..60)
    ) {
        let (_scratch, dir) = scratch();
        let (reference, mut daemon) = (Daemon::new(START), Daemon::start(&dir, START));
        let mut seconds = START;
        for step in steps {
            match step {
                Step::Spend(user) => {
                    let request = Request::new("GET", "/").user(USERS[user]);
                    let allowed = [&reference, &daemon]
                        .map(|one| one.limiter.check(&request).unwrap().is_allowed());
                    prop_assert_eq!(allowed[0], allowed[1]);
                }
                Step::Wait(time) => {
                    seconds += time;
                    reference.clock.advance(Duration::from_micros(time * SECOND_US));
                    daemon.clock.advance(Duration::from_micros(time * SECOND_US));
                }
                Step::Tick => drop(daemon.tick().unwrap()),
                Step::Snapshot => drop(daemon.write_snapshot()),
                Step::Kill(time) => {
                    daemon.tick().unwrap();
                    seconds += time;
                    reference.clock.advance(Duration::from_micros(time * SECOND_US));
                    daemon = Daemon::start(&dir, seconds);
                }
            }
        }
        for user in USERS {
            prop_assert_eq!(daemon.remaining(user), reference.remaining(user));
        }
    }
}
