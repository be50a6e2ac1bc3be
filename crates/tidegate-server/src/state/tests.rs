//! What is saved comes back as it was, whenever the process ends; what is not as it was written is
//! refused.

mod damage;
mod marks;
mod steps;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::{Clock as _, FakeClock};
use tidegate::{Limiter, Policy, Request};

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
const START: u64 = 1_767_603_600;
const SECOND_US: u64 = 1_000_000;
const NEWEST: &str = "counters.newest";

/// A limiter, and what it saves to.
struct Daemon {
    limiter: Limiter<Arc<Memory>>,
    store: Arc<Memory>,
    clock: FakeClock,
    journal: Option<Journal<SavedChange>>,
}

impl Daemon {
    /// One that has loaded nothing.
    fn new(unix_seconds: u64) -> Self {
        Self::under(POLICY, unix_seconds)
    }

    fn under(policy: &str, unix_seconds: u64) -> Self {
        let (store, clock) = (Arc::new(Memory::new()), FakeClock::at_unix_seconds(unix_seconds));
        let policy = Policy::parse("shop.yaml", policy).unwrap();
        let builder = Limiter::builder().policy(policy).clock(clock.clone()).hash_key(SECRET);
        let limiter = builder.store(store.clone()).build().unwrap();
        Self { limiter, store, clock, journal: None }
    }

    fn start(dir: &StateDir, unix_seconds: u64) -> Self {
        Self::new(unix_seconds).with(dir)
    }

    /// The same with what was saved.
    fn with(mut self, dir: &StateDir) -> Self {
        self.load(dir).unwrap();
        self
    }

    fn load(&mut self, dir: &StateDir) -> Result<Option<ImportSummary>, StartError> {
        let (journal, imported) = dir.load_counters(&self.store, &SECRET, self.clock.now())?;
        self.journal = Some(journal);
        Ok(imported)
    }

    fn journal(&mut self) -> &mut Journal<SavedChange> {
        self.journal.as_mut().unwrap()
    }

    /// What happens every second.
    fn tick(&mut self) -> io::Result<u64> {
        let (now, store) = (self.clock.now(), Arc::clone(&self.store));
        self.journal().append(now, store.changes(now))
    }

    /// What happens when the log has grown long, and at a clean stop.
    fn write_snapshot(&mut self) -> u64 {
        let (now, store) = (self.clock.now(), Arc::clone(&self.store));
        let mut snapshot = self.journal().begin_snapshot(now).unwrap();
        for saved in store.export(now) {
            snapshot.record(now, &SavedChange::Set(saved)).unwrap();
        }
        self.journal().finish_snapshot(now, snapshot).unwrap()
    }

    fn spend(&self, user: &str) {
        let request = Request::new("GET", "/").user(user);
        assert!(self.limiter.check(&request).unwrap().is_allowed());
    }

    /// What every limit has left for a user.
    fn remaining(&self, user: &str) -> Vec<(Amount, Option<std::time::Duration>)> {
        let request = Request::new("GET", "/").user(user).cost(Amount::ZERO);
        let decision = self.limiter.check(&request).unwrap();
        decision.limits.iter().map(|one| (one.available, one.reset_after())).collect()
    }

    /// What a user has spent in all.
    fn spent(&self, user: &str) -> u64 {
        10 - self.remaining(user).last().unwrap().0.whole()
    }
}

fn scratch() -> (tempfile::TempDir, StateDir) {
    let dir = tempfile::tempdir().unwrap();
    let state_dir = StateDir::open(&dir.path().join("deep/state")).unwrap();
    (dir, state_dir)
}

/// The files of a directory, without those that have nothing to do with counters.
fn files(dir: &StateDir) -> Vec<String> {
    let names = fs::read_dir(dir.path()).unwrap();
    let mut names: Vec<String> =
        names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with("counters"));
    names.sort();
    names
}

/// The same without the file that names the newest log.
fn snapshot_and_logs(dir: &StateDir) -> Vec<String> {
    let mut names = files(dir);
    names.retain(|name| name != NEWEST);
    names
}

#[test]
fn a_clean_stop_and_start_keeps_every_counter() {
    let (_scratch, dir) = scratch();
    let mut before = Daemon::start(&dir, START);
    for user in ["u1", "u1", "u1", "u2"] {
        before.spend(user);
    }
    assert_eq!(before.write_snapshot(), 14);
    assert_eq!(files(&dir), ["counters", NEWEST]);
    let mut after = Daemon::new(START + 5);
    let imported = after.load(&dir).unwrap().unwrap();
    assert_eq!(imported, ImportSummary { restored: 14, ..ImportSummary::default() });
    before.clock.advance(Duration::from_micros(5 * SECOND_US));
    for user in ["u1", "u2", "u3"] {
        assert_eq!(after.remaining(user), before.remaining(user), "{user}");
    }
    assert_ne!(after.remaining("u1"), after.remaining("u3"), "something is owed");
}

#[test]
fn a_kill_loses_what_came_after_the_last_look() {
    let (_scratch, dir) = scratch();
    let mut killed = Daemon::start(&dir, START);
    killed.spend("u1");
    killed.spend("u2");
    assert_eq!(killed.tick().unwrap(), 14);
    killed.spend("u1");
    killed.clock.advance(Duration::from_micros(SECOND_US));
    assert_eq!(killed.tick().unwrap(), 7, "only what has changed");
    killed.spend("u1");
    drop(killed);
    let after = Daemon::start(&dir, START + 7);
    assert_eq!((after.spent("u1"), after.spent("u2")), (2, 1));
}

#[test]
fn where_nothing_changes_nothing_is_written() {
    let (_scratch, dir) = scratch();
    let mut daemon = Daemon::start(&dir, START);
    daemon.tick().unwrap();
    assert_eq!(files(&dir), [""; 0]);
    daemon.spend("u1");
    daemon.tick().unwrap();
    assert_eq!(files(&dir), ["counters", "counters.log.0", NEWEST]);
    let written = fs::read(dir.path().join("counters.log.0")).unwrap();
    assert!(daemon.journal().take_written() > written.len() as u64, "with the snapshot");
    daemon.remaining("u1");
    daemon.clock.advance(Duration::from_micros(60 * SECOND_US));
    assert_eq!(daemon.tick().unwrap(), 0);
    assert_eq!(daemon.journal().take_written(), 0);
    assert_eq!(fs::read(dir.path().join("counters.log.0")).unwrap(), written);
}

#[test]
fn a_directory_without_a_snapshot_is_a_first_start() {
    let (_scratch, dir) = scratch();
    assert_eq!(Daemon::new(5).load(&dir).unwrap(), None);
}

#[test]
fn the_directory_and_its_files_are_for_this_user_alone() {
    let (_scratch, dir) = scratch();
    let mut daemon = Daemon::start(&dir, START);
    daemon.spend("u1");
    daemon.tick().unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(dir.path()), 0o700);
    assert_eq!(mode(&dir.path().join("counters")), 0o600);
    assert_eq!(mode(&dir.path().join("counters.log.0")), 0o600);
    assert_eq!(mode(&dir.path().join(NEWEST)), 0o600);
}

#[test]
fn a_directory_that_is_none_or_is_anothers_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let message = StateDir::open(&file).unwrap_err().to_string();
    assert!(message.ends_with("file: it is no directory"), "{message}");
    crate::files::make_fifo(&dir.path().join(LOCK));
    let message = StateDir::open(dir.path()).unwrap_err().to_string();
    assert!(message.starts_with("cannot write to the state directory"), "{message}");
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
fn what_is_saved_keeps_its_age_over_several_processes_and_clocks_that_step() {
    let (_scratch, dir) = scratch();
    let mut first = Daemon::start(&dir, START);
    for _ in 0..10 {
        first.spend("u1");
    }
    first.tick().unwrap();
    // The wall clock is set an hour ahead; nothing of that has passed.
    first.clock.step_wall_clock(Duration::from_micros((START + 3_600) * SECOND_US));
    first.spend("u2");
    first.tick().unwrap();
    // Six seconds later, by that clock, and one token more.
    let mut second = Daemon::start(&dir, START + 3_606);
    assert_eq!(second.remaining("u1")[0].0.whole(), 1);
    second.spend("u3");
    second.tick().unwrap();
    second.clock.advance(Duration::from_micros(12 * SECOND_US));
    second.spend("u3");
    second.tick().unwrap();
    let third = Daemon::start(&dir, START + 3_621);
    assert_eq!(third.remaining("u1")[0].0.whole(), 3, "6 s, 12 s within the second, 3 s");
    assert_eq!(third.remaining("u3")[0].0.whole(), 9, "the first of two has come back");
}
