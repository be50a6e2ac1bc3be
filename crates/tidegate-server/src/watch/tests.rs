use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tokio::time::timeout;

use super::*;
use crate::files::make_fifo;

/// Far longer than it takes; only a change that is never told runs into it.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until a change is told.
async fn told(changes: &mut mpsc::Receiver<()>) {
    timeout(PATIENCE, changes.recv()).await.unwrap().unwrap();
}

fn policy_in(dir: &Path) -> PathBuf {
    let path = dir.join("policy.yaml");
    fs::write(&path, "one").unwrap();
    path
}

#[tokio::test]
async fn a_file_that_is_rewritten_is_told_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let (_watcher, mut changes) = watch(vec![path.clone()]).unwrap();
    for text in ["two", "three", "one"] {
        fs::write(&path, text).unwrap();
        told(&mut changes).await;
    }
}

#[tokio::test]
async fn a_file_that_is_renamed_over_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let (_watcher, mut changes) = watch(vec![path.clone()]).unwrap();
    for text in ["two", "three"] {
        fs::write(dir.path().join(".policy.swp"), text).unwrap();
        fs::rename(dir.path().join(".policy.swp"), &path).unwrap();
        told(&mut changes).await;
    }
}

#[tokio::test]
async fn a_swap_of_links_as_kubernetes_does_it_is_told_each_time() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let publish = |version: &str, text: &str| {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("policy.yaml"), text).unwrap();
        symlink(version, at("..data_tmp")).unwrap();
        fs::rename(at("..data_tmp"), at("..data")).unwrap();
    };
    publish("..1", "one");
    symlink("..data/policy.yaml", at("policy.yaml")).unwrap();
    let (_watcher, mut changes) = watch(vec![at("policy.yaml")]).unwrap();
    for (version, text) in [("..2", "two"), ("..3", "three")] {
        publish(version, text);
        told(&mut changes).await;
    }
}

#[tokio::test]
async fn a_file_behind_a_link_to_elsewhere_is_told() {
    let (dir, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = policy_in(elsewhere.path());
    let link = dir.path().join("link.yaml");
    symlink(&target, &link).unwrap();
    let (_watcher, mut changes) = watch(vec![link.clone()]).unwrap();
    fs::write(&target, "two").unwrap();
    told(&mut changes).await;
}

#[tokio::test]
async fn a_file_that_is_deleted_and_at_once_written_again_is_told_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let (_watcher, mut changes) = watch(vec![path.clone()]).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "two").unwrap();
    told(&mut changes).await;
}

#[tokio::test]
async fn a_file_that_is_gone_or_becomes_a_pipe_is_told_and_told_again_when_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let (_watcher, mut changes) = watch(vec![path.clone()]).unwrap();
    for is_pipe in [false, true] {
        fs::remove_file(&path).unwrap();
        if is_pipe {
            make_fifo(&path);
        }
        told(&mut changes).await;
        _ = fs::remove_file(&path);
        fs::write(&path, "one").unwrap();
        told(&mut changes).await;
    }
}

#[tokio::test]
async fn a_directory_that_is_replaced_is_watched_again() {
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("conf");
    fs::create_dir(&conf).unwrap();
    let path = policy_in(&conf);
    let (_watcher, mut changes) = watch(vec![path.clone()]).unwrap();
    fs::remove_dir_all(&conf).unwrap();
    fs::create_dir(&conf).unwrap();
    fs::write(&path, "two").unwrap();
    told(&mut changes).await;
}

#[tokio::test]
async fn each_of_several_files_is_watched() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let other = dir.path().join("other.pem");
    fs::write(&other, "key").unwrap();
    let (_watcher, mut changes) = watch(vec![path, other.clone()]).unwrap();
    fs::write(&other, "another key").unwrap();
    told(&mut changes).await;
}

#[test]
fn a_neighbour_is_no_news() {
    let dir = tempfile::tempdir().unwrap();
    let paths = [policy_in(dir.path())];
    let reported = read_contents(&paths);
    fs::write(dir.path().join("neighbour"), "noise").unwrap();
    assert_eq!(reported, read_contents(&paths));
}

#[tokio::test]
async fn files_that_cannot_be_watched_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let (signals, received) = channel();
    let (sender, mut changes) = mpsc::channel(1);
    let thread = WatchThread {
        paths: vec![path.clone()],
        reported: read_contents(std::slice::from_ref(&path)),
        directories: Directories { watcher: None, watched: BTreeSet::new(), polled: true },
        signals: received,
        changes: sender,
    };
    let thread = thread::spawn(move || thread.run());
    fs::write(&path, "two").unwrap();
    told(&mut changes).await;
    drop(Watcher { signals });
    thread.join().unwrap();
}

#[tokio::test]
async fn nothing_is_told_once_the_watcher_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let (watcher, mut changes) = watch(vec![policy_in(dir.path())]).unwrap();
    drop(watcher);
    assert_eq!(timeout(PATIENCE, changes.recv()).await.unwrap(), None);
}

#[test]
fn a_touch_is_no_news_and_a_deletion_waits() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let paths = [path.clone()];
    let reported = read_contents(&paths);
    fs::write(&path, "one").unwrap();
    assert_eq!(reported, read_contents(&paths));
    fs::write(&path, "two").unwrap();
    assert_ne!(reported, read_contents(&paths));
    assert!(!is_gone(&reported, &read_contents(&paths)));
    fs::remove_file(&path).unwrap();
    assert!(is_gone(&reported, &read_contents(&paths)));
    assert!(!is_gone(&read_contents(&paths), &reported));
}

#[test]
fn links_that_go_in_circles_end() {
    let dir = tempfile::tempdir().unwrap();
    symlink("b", dir.path().join("a")).unwrap();
    symlink("a", dir.path().join("b")).unwrap();
    assert!(directories(&[dir.path().join("a")]).contains(dir.path()));
}
