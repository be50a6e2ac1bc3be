//! Tells when one of some files has changed.
//!
//! What is watched are directories, because editors and Kubernetes do not write into a file: they
//! put another one, or another link, in its place. What is compared is what the files say, so that
//! neither a neighbour nor a touch is taken for a change. Where watching is impossible, the files
//! are looked at once a second.

mod look;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use look::{Seen, directories};

/// Whoever replaces a file is given this long to be done with it.
const QUIET: Duration = Duration::from_millis(50);
/// A file that never comes to rest is told of all the same, after so many looks.
const LOOKS_MAX: usize = 10;
const POLL: Duration = Duration::from_secs(1);

/// Tells that something has changed, as long as the watcher lives.
pub(crate) type Changes = (Watcher, mpsc::Receiver<()>);

/// Watches until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    signals: Sender<Signal>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A thread that has ended already needs no telling.
        let _ = self.signals.send(Signal::Stop);
    }
}

/// Something for the thread that watches.
#[derive(Debug)]
enum Signal {
    /// Something happened in a directory.
    Stir,
    Stop,
}

/// Watches these files. Each message says that some have changed since the last one; a file that is
/// gone is told of once it is back and says something else. Whoever reads the files afterwards
/// misses nothing; what changes between an earlier reading and this call is not told.
///
/// # Errors
/// No thread can be started.
pub(crate) fn watch(paths: Vec<PathBuf>) -> io::Result<Changes> {
    let (signals, stirs) = channel();
    let (changes, told) = mpsc::channel(1);
    let directories = Directories::new(signals.clone(), &paths);
    let seen = Seen::new(paths);
    let watching = Watching { seen, directories, stirs, changes };
    thread::Builder::new().name("watch".to_owned()).spawn(move || watching.run())?;
    Ok((Watcher { signals }, told))
}

/// The thread that watches.
struct Watching {
    seen: Seen,
    directories: Directories,
    stirs: Receiver<Signal>,
    changes: mpsc::Sender<()>,
}

impl Watching {
    fn run(mut self) {
        while self.wait_for_a_stir() && self.wait_for_quiet() {
            // Before the look: what changes after it stirs again.
            self.directories.follow(self.seen.paths());
            if self.has_changed() && self.changes.blocking_send(()).is_err() {
                return;
            }
        }
    }

    /// Whether to go on.
    fn wait_for_a_stir(&self) -> bool {
        if !self.directories.polled {
            return matches!(self.stirs.recv(), Ok(Signal::Stir));
        }
        let signal = self.stirs.recv_timeout(POLL);
        matches!(signal, Ok(Signal::Stir) | Err(RecvTimeoutError::Timeout))
    }

    /// Lets a burst of events pass; whether to go on.
    fn wait_for_quiet(&self) -> bool {
        for _ in 0..LOOKS_MAX {
            match self.stirs.recv_timeout(QUIET) {
                Ok(Signal::Stir) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    /// Whether anything has changed, once two looks in a row have found the same.
    fn has_changed(&mut self) -> bool {
        let mut look = self.seen.look();
        for _ in 0..LOOKS_MAX {
            if !self.seen.differs(&look) {
                return false;
            }
            thread::sleep(QUIET);
            let again = self.seen.look();
            if again == look {
                break;
            }
            look = again;
        }
        self.seen.remember(look)
    }
}

/// The directories that are watched.
struct Directories {
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    /// Whether some of them cannot be watched, so that the files are looked at instead.
    polled: bool,
}

impl Directories {
    fn new(signals: Sender<Signal>, paths: &[PathBuf]) -> Self {
        let stir = move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, may_change) {
                // The thread has ended: nobody wants to know.
                let _ = signals.send(Signal::Stir);
            }
        };
        let watcher = notify::recommended_watcher(stir);
        let watcher = watcher.inspect_err(|error| warn(&error.to_string())).ok();
        let polled = watcher.is_none();
        let mut directories = Self { watcher, watched: BTreeSet::new(), polled };
        directories.follow(paths);
        directories
    }

    /// Watches what the paths lead through by now. Those that are watched already are asked for
    /// again, since a directory may have been replaced by another of its name.
    fn follow(&mut self, paths: &[PathBuf]) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted = directories(paths);
        for gone in self.watched.difference(&wanted) {
            // One that was removed is not watched any more, which is what is wanted.
            let _ = watcher.unwatch(gone);
        }
        let mut failed = None;
        for directory in &wanted {
            if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
                failed = Some(format!("{}: {error}", directory.display()));
            }
        }
        if let Some(failed) = &failed
            && !self.polled
        {
            warn(failed);
        }
        self.polled = failed.is_some();
        self.watched = wanted;
    }
}

fn warn(why: &str) {
    let message = "cannot watch files, looking at them once a second instead";
    tracing::warn!(event = "watch_failed", "{message}: {why}");
}

/// Whether something may have changed; looking at a file changes nothing.
fn may_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
