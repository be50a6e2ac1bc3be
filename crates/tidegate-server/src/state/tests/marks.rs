//! Bans, flags and factors.

use std::time::Duration;

use tidegate::NewMark;
use tidegate::engine::marks::Subject;

use super::*;

const HOUR: Duration = Duration::from_secs(3_600);

fn order(user: &str) -> NewMark {
    NewMark::new(Subject::user(user)).lasts(HOUR).reason("for this test")
}

impl Daemon {
    fn load_marks(&self, dir: &StateDir) -> (Journal<MarkChange>, usize) {
        dir.load_marks(self.limiter.marks(), &SECRET, self.clock.now()).unwrap()
    }

    fn is_banned(&self, user: &str) -> bool {
        let request = Request::new("GET", "/").user(user);
        !self.limiter.check(&request).unwrap().is_allowed()
    }
}

#[test]
fn bans_and_flags_outlive_the_process_until_their_end() {
    let (_scratch, dir) = scratch();
    let before = Daemon::new(1_000);
    let (mut journal, back) = before.load_marks(&dir);
    assert_eq!(back, 0);
    before.limiter.ban(&order("u1")).unwrap();
    before.limiter.flag("review", &order("u1")).unwrap();
    let now = before.clock.now();
    assert_eq!(journal.append(now, before.limiter.marks().changes(now)).unwrap(), 2);
    for (later, back, banned) in [(1_600, 2, true), (4_599, 2, true), (4_600, 0, false)] {
        let after = Daemon::new(later);
        assert_eq!(after.load_marks(&dir).1, back, "at {later}");
        assert_eq!(after.is_banned("u1"), banned, "at {later}");
    }
}

#[test]
fn what_an_operator_lifts_stays_lifted_after_a_kill() {
    let (_scratch, dir) = scratch();
    let before = Daemon::new(1_000);
    let (mut journal, _) = before.load_marks(&dir);
    let bans = ["u1", "u2"].map(|user| before.limiter.ban(&order(user)).unwrap());
    let (now, marks) = (before.clock.now(), before.limiter.marks());
    let mut snapshot = journal.begin_snapshot(now).unwrap();
    for mark in marks.export(now) {
        snapshot.record(now, &MarkChange::Set(mark)).unwrap();
    }
    journal.finish_snapshot(now, snapshot).unwrap();
    assert!(before.limiter.unmark(MarkKind::Ban, bans[0].id));
    journal.append(now, marks.changes(now)).unwrap();
    let after = Daemon::new(1_001);
    assert_eq!(after.load_marks(&dir).1, 1);
    assert_eq!((after.is_banned("u1"), after.is_banned("u2")), (false, true));
}

#[test]
fn bans_hold_under_another_secret() {
    let (_scratch, dir) = scratch();
    let before = Daemon::new(1_000);
    let (mut journal, _) = before.load_marks(&dir);
    before.limiter.ban(&order("u1")).unwrap();
    let now = before.clock.now();
    journal.append(now, before.limiter.marks().changes(now)).unwrap();
    let policy = Policy::parse("shop.yaml", POLICY).unwrap();
    let secret = HashKey::new([8; 16]);
    let other = Limiter::builder().policy(policy).clock(before.clock).hash_key(secret.clone());
    let other = other.build().unwrap();
    assert_eq!(dir.load_marks(other.marks(), &secret, now).unwrap().1, 1);
    assert!(!other.check(&Request::new("GET", "/").user("u1")).unwrap().is_allowed());
}

#[test]
fn marks_that_are_damaged_are_refused_whole() {
    let (_scratch, dir) = scratch();
    let daemon = Daemon::new(1_000);
    let (mut journal, _) = daemon.load_marks(&dir);
    for user in ["u1", "u2"] {
        daemon.limiter.ban(&NewMark::new(Subject::user(user))).unwrap();
        let now = daemon.clock.now();
        journal.append(now, daemon.limiter.marks().changes(now)).unwrap();
    }
    let path = dir.path().join("marks.log.0");
    let whole = fs::read(&path).unwrap();
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 1;
    fs::write(&path, damaged).unwrap();
    let after = Daemon::new(1_000);
    let error = dir.load_marks(after.limiter.marks(), &SECRET, after.clock.now()).err().unwrap();
    let error = error.to_string();
    assert!(error.contains("damaged"), "{error}");
    assert!(error.contains("away to start without bans, flags and factors"), "{error}");
    assert_eq!(after.limiter.marks().count(MarkKind::Ban), 0);
}
