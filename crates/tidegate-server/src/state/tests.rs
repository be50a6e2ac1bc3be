use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use tidegate::clock::{Clock as _, FakeClock};
use tidegate::marks::Whom;
use tidegate::units::Amount;
use tidegate::{Limiter, Order, Policy, Request};

use super::*;

const POLICY: &str = "
tidegate: 1
name: shop
limits:
  bucket:  { by: user, token_bucket: 10/min burst 10 }
  exact:   { by: user, sliding_window: 10/min }
  counter: { by: user, sliding_counter: 10/min }
  window:  { by: user, fixed_window: 10/min }
  quota:   { by: user, quota: 10/day }
  places:  { by: user, concurrency: 10 }
  total:   { by: user, total: 10 }
";
const SECRET: HashKey = HashKey::new([7; 16]);

struct Daemon {
    limiter: Limiter<Arc<Memory>>,
    store: Arc<Memory>,
    clock: FakeClock,
}

impl Daemon {
    fn start(unix_seconds: u64) -> Self {
        let (store, clock) = (Arc::new(Memory::new()), FakeClock::at_unix_seconds(unix_seconds));
        let policy = Policy::parse("shop.yaml", POLICY).unwrap();
        let builder = Limiter::builder().policy(policy).clock(clock.clone()).hash_key(SECRET);
        let limiter = builder.store(store.clone()).build().unwrap();
        Self { limiter, store, clock }
    }

    fn load(&self, dir: &StateDir) -> Result<Option<Imported>, StateError> {
        dir.load(&self.store, &SECRET, self.clock.now())
    }

    fn save(&self, dir: &StateDir) -> u64 {
        dir.save(&self.store, &SECRET, self.clock.now()).unwrap()
    }

    fn spend(&self, user: &str) {
        let request = Request::new("GET", "/").user(user);
        assert!(self.limiter.check(&request).unwrap().is_allowed());
    }

    /// What every limit has left for a user.
    fn remaining(&self, user: &str) -> Vec<(Amount, Option<u64>)> {
        let request = Request::new("GET", "/").user(user).cost(Amount::ZERO);
        let decision = self.limiter.check(&request).unwrap();
        decision.limits.iter().map(|one| (one.available, one.reset_us)).collect()
    }
}

fn scratch() -> (tempfile::TempDir, StateDir) {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = StateDir::open(&dir.path().join("deep/state")).unwrap();
    (dir, state_dir)
}

/// A snapshot of a few keys, and what is in it.
fn saved(dir: &StateDir) -> Vec<u8> {
    let daemon = Daemon::start(1_767_603_600);
    daemon.spend("u1");
    daemon.save(dir);
    fs::read(dir.path().join(SNAPSHOT)).unwrap()
}

/// What loading these bytes says; nothing of them may have been used.
fn refusal(dir: &StateDir, bytes: &[u8]) -> String {
    fs::write(dir.path().join(SNAPSHOT), bytes).unwrap();
    let daemon = Daemon::start(1_767_603_600);
    let refused = daemon.load(dir).unwrap_err().to_string();
    assert_eq!(daemon.store.keys(), 0, "half-loaded: {refused}");
    refused
}

#[test]
fn a_clean_stop_and_start_keeps_every_counter() {
    let (_scratch, dir) = scratch();
    let before = Daemon::start(1_767_603_600);
    for user in ["u1", "u1", "u1", "u2"] {
        before.spend(user);
    }
    assert_eq!(before.save(&dir), 14);
    let after = Daemon::start(1_767_603_605);
    let imported = after.load(&dir).unwrap().unwrap();
    assert_eq!(imported, Imported { restored: 14, ..Imported::default() });
    before.clock.advance_us(5_000_000);
    for user in ["u1", "u2", "u3"] {
        assert_eq!(after.remaining(user), before.remaining(user), "{user}");
    }
    assert_ne!(after.remaining("u1"), after.remaining("u3"), "something is owed");
}

#[test]
fn a_directory_without_a_snapshot_is_a_first_start() {
    let (_scratch, dir) = scratch();
    assert_eq!(Daemon::start(5).load(&dir).unwrap(), None);
}

#[test]
fn the_directory_and_its_files_are_for_this_user_alone() {
    let (_scratch, dir) = scratch();
    saved(&dir);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.path()), 0o700);
    assert_eq!(mode(&dir.path().join(SNAPSHOT)), 0o600);
}

#[test]
fn two_processes_cannot_share_a_directory() {
    let (_scratch, dir) = scratch();
    let message = StateDir::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("in use by another process"), "{message}");
    let path = dir.path().to_owned();
    drop(dir);
    StateDir::open(&path).unwrap();
}

#[test]
fn every_prefix_is_refused() {
    let (_scratch, dir) = scratch();
    let whole = saved(&dir);
    for length in 0..whole.len() {
        let message = refusal(&dir, &whole[..length]);
        assert!(message.contains("it is torn"), "{length}: {message}");
    }
    assert!(refusal(&dir, &[&whole[..], b"x"].concat()).contains("it is torn"));
}

#[test]
fn every_flipped_bit_is_refused() {
    let (_scratch, dir) = scratch();
    let whole = saved(&dir);
    for place in 0..whole.len() {
        for bit in [0, 3, 7] {
            let mut flipped = whole.clone();
            flipped[place] ^= 1 << bit;
            refusal(&dir, &flipped);
        }
    }
}

#[test]
fn a_refusal_names_the_file_what_was_found_and_what_to_do() {
    let (_scratch, dir) = scratch();
    let whole = saved(&dir);
    let newer = [&whole[..8], &[9, 0, 0, 0], &whole[12..]].concat();
    let message = refusal(&dir, &newer);
    assert!(message.contains("deep/state/counters"), "{message}");
    assert!(message.contains("found format 9, and this release reads format 3"), "{message}");
    assert!(message.contains("use the release that wrote it"), "{message}");
    assert!(refusal(&dir, b"{\"hello\": 1}").contains("not a file of Tidegate's"));
}

#[test]
fn counters_of_another_secret_are_refused() {
    let (_scratch, dir) = scratch();
    saved(&dir);
    let daemon = Daemon::start(1_767_603_600);
    let other = HashKey::new([8; 16]);
    let message = dir.load(&daemon.store, &other, daemon.clock.now()).unwrap_err().to_string();
    assert!(message.contains("saved with another hash key"), "{message}");
    assert_eq!(daemon.store.keys(), 0);
}

#[test]
fn what_a_writer_left_half_written_does_no_harm() {
    let (_scratch, dir) = scratch();
    saved(&dir);
    fs::write(dir.path().join("counters.tmp"), b"half").unwrap();
    let daemon = Daemon::start(1_767_603_601);
    assert_eq!(daemon.load(&dir).unwrap().unwrap().restored, 7);
    daemon.save(&dir);
    assert!(!dir.path().join("counters.tmp").exists());
    assert_eq!(Daemon::start(1_767_603_601).load(&dir).unwrap().unwrap().restored, 7);
}

#[test]
fn bans_and_flags_outlive_the_process_until_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let dir = StateDir::open(folder.path()).unwrap();
    let hour = std::time::Duration::from_secs(3_600);
    let before = Daemon::start(1_000);
    assert_eq!(dir.load_marks(before.limiter.marks(), before.clock.now()).unwrap(), 0);
    let order = |user: &str| Order::new(Whom::user(user)).lasts(hour).reason("for this test");
    before.limiter.ban(&order("u1")).unwrap();
    before.limiter.flag("review", &order("u1")).unwrap();
    let saved = dir.save_marks(before.limiter.marks(), &SECRET, before.clock.now()).unwrap();
    assert_eq!(saved, 2);
    for (later, back, banned) in [(1_600, 2, true), (4_599, 2, true), (4_600, 0, false)] {
        let after = Daemon::start(later);
        let loaded = dir.load_marks(after.limiter.marks(), after.clock.now()).unwrap();
        assert_eq!(loaded, back, "at {later}");
        let decision = after.limiter.check(&Request::new("GET", "/").user("u1")).unwrap();
        assert_eq!(!decision.is_allowed(), banned, "at {later}");
    }
}

#[test]
fn marks_that_are_damaged_are_refused_whole() {
    let folder = tempfile::tempdir().unwrap();
    let dir = StateDir::open(folder.path()).unwrap();
    let daemon = Daemon::start(1_000);
    for user in ["u1", "u2"] {
        daemon.limiter.ban(&Order::new(Whom::user(user))).unwrap();
    }
    dir.save_marks(daemon.limiter.marks(), &SECRET, daemon.clock.now()).unwrap();
    let path = folder.path().join("marks");
    let mut bytes = fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&path, bytes).unwrap();
    let after = Daemon::start(1_000);
    let error = dir.load_marks(after.limiter.marks(), after.clock.now()).unwrap_err();
    assert!(error.to_string().contains("damaged"), "{error}");
    assert_eq!(after.limiter.marks().count(tidegate::marks::MarkKind::Ban), 0);
}
