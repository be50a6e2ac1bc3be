//! What is torn, damaged or foreign.

use std::time::Duration;

use super::*;
use crate::state::record_format::{HEAD_BYTES, RecordReader};

const LOG: &str = "counters.log.0";

/// Short, since every byte is tried.
fn new(unix_seconds: u64) -> Daemon {
    let policy = "{tidegate: 1, name: shop, limits: {total: {by: user, total: 10}}}";
    Daemon::under(policy, unix_seconds)
}

fn start(dir: &StateDir, unix_seconds: u64) -> Daemon {
    new(unix_seconds).with(dir)
}

/// A snapshot of a few keys.
fn snapshot(dir: &StateDir) -> Vec<u8> {
    let mut daemon = start(dir, START);
    daemon.spend("u1");
    daemon.write_snapshot();
    fs::read(dir.path().join("counters")).unwrap()
}

/// A log in which a user spends one each second, and how long it was after each of them.
fn log(dir: &StateDir, seconds: usize) -> (Vec<u8>, Vec<usize>) {
    let (mut daemon, path) = (start(dir, START), dir.path().join(LOG));
    let lengths = (0..seconds).map(|_| {
        daemon.spend("u1");
        daemon.tick().unwrap();
        daemon.clock.advance(Duration::from_micros(SECOND_US));
        usize::try_from(fs::metadata(&path).unwrap().len()).unwrap()
    });
    let lengths = lengths.collect();
    (fs::read(path).unwrap(), lengths)
}

/// What loading says; nothing may have been used.
fn refusal(dir: &StateDir) -> String {
    let mut daemon = new(START);
    let refused = daemon.load(dir).unwrap_err().to_string();
    assert_eq!(daemon.store.keys(), 0, "half-loaded: {refused}");
    assert!(refused.contains("away to start with empty counters"), "{refused}");
    refused
}

/// The same, where a file holds these bytes.
fn refusal_of(dir: &StateDir, file: &str, bytes: &[u8]) -> String {
    fs::write(dir.path().join(file), bytes).unwrap();
    refusal(dir)
}

#[test]
fn every_prefix_of_a_snapshot_is_refused() {
    let (_scratch, dir) = scratch();
    let whole = snapshot(&dir);
    for length in 0..whole.len() {
        let message = refusal_of(&dir, "counters", &whole[..length]);
        assert!(message.contains("it is torn"), "{length}: {message}");
    }
    let message = refusal_of(&dir, "counters", &[&whole[..], b"x"].concat());
    assert!(message.contains("goes on after its end"), "{message}");
}

#[test]
fn every_flipped_bit_of_a_snapshot_is_refused() {
    let (_scratch, dir) = scratch();
    let whole = snapshot(&dir);
    for place in 0..whole.len() {
        for bit in [0, 3, 7] {
            let mut flipped = whole.clone();
            flipped[place] ^= 1 << bit;
            refusal_of(&dir, "counters", &flipped);
        }
    }
}

#[test]
fn a_log_that_is_torn_at_any_byte_gives_all_that_is_whole_and_is_gone_on_with() {
    let (_scratch, dir) = scratch();
    let (whole, lengths) = log(&dir, 3);
    let (path, newest) = (dir.path().join(LOG), fs::read(dir.path().join(NEWEST)).unwrap());
    let header = RecordReader::begin(&whole[..]).unwrap().1.position();
    let header = usize::try_from(header).unwrap();
    for length in 0..whole.len() {
        _ = fs::remove_file(dir.path().join("counters.log.1"));
        fs::write(dir.path().join(NEWEST), &newest).unwrap();
        fs::write(&path, &whole[..length]).unwrap();
        if length < header {
            // It is given its name when that much is on the disk, so that no crash leaves this.
            assert!(refusal(&dir).contains("it is torn"), "{length}");
            continue;
        }
        let kept = lengths.iter().filter(|whole| **whole <= length).count() as u64;
        let mut daemon = start(&dir, START + 5);
        assert_eq!(daemon.spent("u1"), kept, "{length} of {lengths:?}");
        daemon.spend("u1");
        daemon.spend("u2");
        daemon.tick().unwrap();
        let after = start(&dir, START + 6);
        assert_eq!((after.spent("u1"), after.spent("u2")), (kept + 1, 1), "{length}");
    }
}

#[test]
fn what_was_cut_off_is_told() {
    let (_scratch, dir) = scratch();
    let (whole, _) = log(&dir, 2);
    fs::write(dir.path().join(LOG), &whole[..whole.len() - 3]).unwrap();
    let names = FileNames::counters(dir.path());
    let recovery = Recovery::<SavedChange>::read(&names, None).unwrap();
    let torn = recovery.torn.unwrap();
    assert_eq!(torn.path, dir.path().join(LOG));
    assert!(torn.bytes > 3 && torn.bytes < whole.len() as u64, "{}", torn.bytes);
}

#[test]
fn damage_before_the_last_second_of_a_log_is_refused_and_in_it_is_cut_off() {
    let (_scratch, dir) = scratch();
    let (whole, lengths) = log(&dir, 3);
    for place in 0..whole.len() {
        for bit in [0, 5] {
            let mut flipped = whole.clone();
            flipped[place] ^= 1 << bit;
            fs::write(dir.path().join(LOG), &flipped).unwrap();
            if place < lengths[1] {
                refusal(&dir);
            } else {
                assert_eq!(start(&dir, START + 5).spent("u1"), 2, "at {place}");
            }
        }
    }
}

#[test]
fn a_log_of_which_a_power_cut_left_holes_gives_what_was_synced() {
    let (_scratch, dir) = scratch();
    let mut daemon = start(&dir, START);
    daemon.spend("u1");
    daemon.tick().unwrap();
    let path = dir.path().join(LOG);
    let synced = usize::try_from(fs::metadata(&path).unwrap().len()).unwrap();
    for user in 0..4_000 {
        daemon.spend(&format!("user {user}"));
    }
    daemon.tick().unwrap();
    let mut holed = fs::read(&path).unwrap();
    assert!(holed.len() > synced + 2 * 65_536, "several blocks");
    holed[synced..synced + 4_096].fill(0);
    fs::write(&path, &holed).unwrap();
    let mut after = start(&dir, START + 1);
    assert_eq!((after.spent("u1"), after.store.keys()), (1, 1));
    // The next process goes on behind what counts, and that is then what counts.
    after.spend("u2");
    after.tick().unwrap();
    let after = start(&dir, START + 2);
    assert_eq!((after.spent("u1"), after.spent("u2"), after.store.keys()), (1, 1, 2));
    holed[synced - 9] ^= 1;
    fs::write(&path, &holed).unwrap();
    assert!(refusal(&dir).contains("damaged"));
}

#[test]
fn a_log_that_others_follow_must_be_whole_and_there() {
    let (_scratch, dir) = scratch();
    let (whole, _) = log(&dir, 2);
    let mut second = start(&dir, START + 5);
    second.spend("u2");
    second.tick().unwrap();
    assert_eq!(snapshot_and_logs(&dir), ["counters", LOG, "counters.log.1"]);
    let message = refusal_of(&dir, LOG, &whole[..whole.len() - 1]);
    assert!(message.contains("it is torn") && message.contains(LOG), "{message}");
    let mut flipped = whole.clone();
    *flipped.last_mut().unwrap() ^= 1;
    assert!(refusal_of(&dir, LOG, &flipped).contains("damaged"));
    fs::remove_file(dir.path().join(LOG)).unwrap();
    let message = refusal(&dir);
    assert!(message.contains("it is not there") && message.contains(LOG), "{message}");
    fs::write(dir.path().join(LOG), &whole).unwrap();
    assert_eq!(start(&dir, START + 6).spent("u1"), 2);
    fs::remove_file(dir.path().join("counters")).unwrap();
    assert!(refusal(&dir).contains("it is not there"));
}

#[test]
fn a_deleted_newest_log_refuses_the_start_until_it_is_back() {
    let (_scratch, dir) = scratch();
    let mut daemon = start(&dir, START);
    // A log of the first process, of the second after a kill, and after a snapshot.
    for (log, snapshot) in [(LOG, false), ("counters.log.1", true), ("counters.log.2", false)] {
        daemon.spend("u1");
        daemon.tick().unwrap();
        let (path, spent) = (dir.path().join(log), daemon.spent("u1"));
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let message = refusal(&dir);
        assert!(message.contains(&format!("{log}: it is not there")), "{message}");
        assert!(message.contains("put it back, or move counters and counters.* away"), "{message}");
        fs::write(&path, &whole).unwrap();
        daemon = start(&dir, START + 1);
        assert_eq!(daemon.spent("u1"), spent);
        if snapshot {
            daemon.write_snapshot();
        }
    }
}

#[test]
fn a_deleted_snapshot_refuses_the_start_after_a_clean_stop_too() {
    let (_scratch, dir) = scratch();
    snapshot(&dir);
    fs::remove_file(dir.path().join("counters")).unwrap();
    let message = refusal(&dir);
    assert!(message.contains("counters: it is not there"), "{message}");
    fs::remove_file(dir.path().join(NEWEST)).unwrap();
    assert_eq!(start(&dir, START).store.keys(), 0, "all of it was moved away");
}

#[test]
fn every_prefix_and_flipped_bit_of_the_note_of_the_newest_log_is_refused() {
    let (_scratch, dir) = scratch();
    log(&dir, 1);
    let whole = fs::read(dir.path().join(NEWEST)).unwrap();
    for place in 0..whole.len() {
        refusal_of(&dir, NEWEST, &whole[..place]);
        let mut flipped = whole.clone();
        flipped[place] ^= 8;
        refusal_of(&dir, NEWEST, &flipped);
    }
}

#[test]
fn a_directory_of_an_earlier_release_loads_and_is_guarded_from_the_first_change_on() {
    let (_scratch, dir) = scratch();
    log(&dir, 2);
    // That release noted nothing.
    fs::remove_file(dir.path().join(NEWEST)).unwrap();
    let mut daemon = start(&dir, START + 5);
    assert_eq!(daemon.spent("u1"), 2);
    daemon.spend("u1");
    daemon.tick().unwrap();
    fs::remove_file(dir.path().join("counters.log.1")).unwrap();
    assert!(refusal(&dir).contains("counters.log.1: it is not there"));
}

#[test]
fn a_pipe_in_place_of_a_file_refuses_the_start_at_once() {
    let (_scratch, dir) = scratch();
    log(&dir, 1);
    for name in ["counters", LOG, NEWEST] {
        let path = dir.path().join(name);
        let whole = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        crate::files::make_fifo(&path);
        let message = refusal(&dir);
        assert!(message.contains("it is a pipe, expected a file"), "{message}");
        fs::remove_file(&path).unwrap();
        fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn a_refusal_names_the_file_what_was_found_and_what_to_do() {
    let (_scratch, dir) = scratch();
    let (whole, snapshot) = (log(&dir, 1).0, fs::read(dir.path().join("counters")).unwrap());
    for (file, bytes) in [("counters", &snapshot), (LOG, &whole)] {
        let newer = [&bytes[..8], &[9, 0, 0, 0], &bytes[HEAD_BYTES..]].concat();
        let message = refusal_of(&dir, file, &newer);
        assert!(message.contains(&format!("deep/state/{file}:")), "{message}");
        assert!(message.contains("found format 9, and this release reads format 4"), "{message}");
        assert!(message.contains("use the release that wrote it"), "{message}");
        let message = refusal_of(&dir, file, b"{\"hello\": 1}");
        assert!(message.contains("not a file of Tidegate's"), "{message}");
        fs::write(dir.path().join(file), bytes).unwrap();
    }
    let message = refusal_of(&dir, "counters", &whole);
    assert!(message.contains("belongs elsewhere"), "{message}");
    fs::write(dir.path().join("counters"), &snapshot).unwrap();
    let message = refusal_of(&dir, "counters.log.1", &whole);
    assert!(message.contains("counters.log.1: ") && message.contains("elsewhere"), "{message}");
}

#[test]
fn counters_of_another_secret_are_refused() {
    let (_scratch, dir) = scratch();
    snapshot(&dir);
    let daemon = new(START);
    let other = HashKey::new([8; 16]);
    let refused = dir.load_counters(&daemon.store, &other, daemon.clock.now()).err().unwrap();
    assert!(refused.to_string().contains("saved with another hash key"), "{refused}");
    assert_eq!(daemon.store.keys(), 0);
}
