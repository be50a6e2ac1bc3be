use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use tokio::time::timeout;

use super::*;

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
async fn a_file_that_is_deleted_is_told_once_it_is_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let (_watcher, mut changes) = watch(vec![path.clone()]).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "two").unwrap();
    told(&mut changes).await;
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
    let seen = Seen::new(vec![policy_in(dir.path())]);
    fs::write(dir.path().join("neighbour"), "noise").unwrap();
    assert!(!seen.differs(&seen.look()));
}

#[tokio::test]
async fn files_that_cannot_be_watched_are_looked_at() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let (signals, stirs) = channel();
    let (sender, mut changes) = mpsc::channel(1);
    let watching = Watching {
        seen: Seen::new(vec![path.clone()]),
        directories: Directories { watcher: None, watched: BTreeSet::new(), polled: true },
        stirs,
        changes: sender,
    };
    let thread = thread::spawn(move || watching.run());
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
fn neither_a_touch_nor_a_deletion_is_news() {
    let dir = tempfile::tempdir().unwrap();
    let path = policy_in(dir.path());
    let mut seen = Seen::new(vec![path.clone()]);
    fs::write(&path, "one").unwrap();
    assert!(!seen.differs(&seen.look()));
    fs::remove_file(&path).unwrap();
    assert!(!seen.differs(&seen.look()));
    fs::write(&path, "two").unwrap();
    let look = seen.look();
    assert!(seen.differs(&look));
    assert!(seen.remember(look));
    assert!(!seen.differs(&seen.look()));
}

#[test]
fn links_that_go_in_circles_end() {
    let dir = tempfile::tempdir().unwrap();
    symlink("b", dir.path().join("a")).unwrap();
    symlink("a", dir.path().join("b")).unwrap();
    assert!(directories(&[dir.path().join("a")]).contains(dir.path()));
}
