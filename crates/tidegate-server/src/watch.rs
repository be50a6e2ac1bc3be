//! Watches files for changes.
//!
//! Directories are watched, because editors and Kubernetes do not write into a file: they replace the
//! file, or a link on the way. Contents are compared, so that neither a neighbour nor a touch is a
//! change. Where watching is impossible, the files are read once a second.

mod contents;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::mpsc;

use contents::{Contents, directories, is_gone, read_contents};

/// The time that the writer of a file has to finish.
const QUIET: Duration = Duration::from_millis(50);
/// A file that keeps changing, or that is gone, is reported after this many reads.
const READS_MAX: usize = 10;
const POLL: Duration = Duration::from_secs(1);

/// Each message says that a file has changed. They end with the watcher.
pub(crate) type Changes = (Watcher, mpsc::Receiver<()>);

/// Watches until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    signals: Sender<Signal>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // It fails only if the thread has ended already.
        let _ = self.signals.send(Signal::Stop);
    }
}

/// A signal to the thread that watches.
#[derive(Debug)]
enum Signal {
    /// Something happened in a directory.
    Activity,
    Stop,
}

/// Watches these files. Each message says that some have changed since the last one, or are gone, or are
/// back. A caller that reads the files after this call misses no change.
///
/// # Errors
/// No thread can be started.
pub(crate) fn watch(paths: Vec<PathBuf>) -> io::Result<Changes> {
    let (signals, received) = channel();
    let (changes, reports) = mpsc::channel(1);
    let directories = Directories::new(signals.clone(), &paths);
    let reported = read_contents(&paths);
    let thread = WatchThread { paths, reported, directories, signals: received, changes };
    thread::Builder::new().name("watch".to_owned()).spawn(move || thread.run())?;
    Ok((Watcher { signals }, reports))
}

/// The thread that watches.
struct WatchThread {
    paths: Vec<PathBuf>,
    /// The contents at the last report.
    reported: Contents,
    directories: Directories,
    signals: Receiver<Signal>,
    changes: mpsc::Sender<()>,
}

impl WatchThread {
    fn run(mut self) {
        while self.wait_for_activity() && self.wait_for_quiet() {
            // Before the files are read: later changes send a signal again.
            self.directories.follow(&self.paths);
            if self.has_changed() && self.changes.blocking_send(()).is_err() {
                return;
            }
        }
    }

    /// False if the thread must stop.
    fn wait_for_activity(&self) -> bool {
        if !self.directories.polled {
            return matches!(self.signals.recv(), Ok(Signal::Activity));
        }
        let signal = self.signals.recv_timeout(POLL);
        matches!(signal, Ok(Signal::Activity) | Err(RecvTimeoutError::Timeout))
    }

    /// Lets a burst of events pass; false if the thread must stop.
    fn wait_for_quiet(&self) -> bool {
        for _ in 0..READS_MAX {
            match self.signals.recv_timeout(QUIET) {
                Ok(Signal::Activity) => {}
                Err(RecvTimeoutError::Timeout) => return true,
                Ok(Signal::Stop) | Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        true
    }

    /// True if a file has changed, once two reads in a row found the same.
    fn has_changed(&mut self) -> bool {
        let mut found = read_contents(&self.paths);
        for _ in 0..READS_MAX {
            if found == self.reported {
                return false;
            }
            thread::sleep(QUIET);
            let again = read_contents(&self.paths);
            if again == found && !is_gone(&self.reported, &found) {
                break;
            }
            found = again;
        }
        let is_changed = found != self.reported;
        self.reported = found;
        is_changed
    }
}

/// The directories that are watched.
struct Directories {
    watcher: Option<RecommendedWatcher>,
    watched: BTreeSet<PathBuf>,
    /// Some of them cannot be watched, so that the files are read once a second.
    polled: bool,
}

impl Directories {
    fn new(signals: Sender<Signal>, paths: &[PathBuf]) -> Self {
        let handler = move |event: notify::Result<Event>| {
            if event.as_ref().map_or(true, may_change) {
                // It fails only if the thread has ended.
                let _ = signals.send(Signal::Activity);
            }
        };
        let watcher = notify::recommended_watcher(handler);
        let watcher = watcher.inspect_err(|error| warn(&error.to_string())).ok();
        let polled = watcher.is_none();
        let mut directories = Self { watcher, watched: BTreeSet::new(), polled };
        directories.follow(paths);
        directories
    }

    /// Watches the directories of the paths. Those of before are watched again, since another directory
    /// may have taken their name.
    fn follow(&mut self, paths: &[PathBuf]) {
        let Some(watcher) = &mut self.watcher else { return };
        let wanted = directories(paths);
        for gone in self.watched.difference(&wanted) {
            // It fails only for a directory that was removed.
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

/// True unless the event is a mere access.
fn may_change(event: &Event) -> bool {
    match event.kind {
        EventKind::Access(AccessKind::Close(AccessMode::Write)) => true,
        EventKind::Access(_) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests;
