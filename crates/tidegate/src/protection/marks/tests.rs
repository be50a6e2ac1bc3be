mod changes;
mod lookup;
mod subjects;

use std::sync::Mutex;
use std::time::Duration;

use proptest::prelude::*;

use super::*;

const HOUR_US: u64 = 3_600_000_000;
const START: Now = Now { steady_us: 1_000_000_000_000, unix_us: 1_000_000_000_000 };

fn marks(max: usize) -> Marks {
    Marks::new(HashKey::new([7; 16]), max)
}

fn later(us: u64) -> Now {
    Now { steady_us: START.steady_us + us, unix_us: START.unix_us + us }
}

fn ban(marks: &Marks, subject: Subject, for_us: Option<u64>, now: Now) -> Mark {
    Mark {
        id: marks.id_of(MarkKind::Ban, Some("api"), None, &subject),
        kind: MarkKind::Ban,
        policy: Some("api".to_owned()),
        subject,
        source: "p".to_owned(),
        reason: "r".to_owned(),
        flag: None,
        since_unix_us: now.unix_us,
        until_unix_us: for_us.map(|us| now.unix_us + us),
        factor_ppm: None,
    }
}

fn holds(marks: &Marks, mark: &Mark, now: Now) -> bool {
    marks.get(mark.kind, mark.id, now).is_some()
}

#[test]
fn a_flood_of_subjects_stays_within_the_bound_and_evicts_no_live_ban() {
    let marks = marks(100);
    let first: Vec<Mark> = (0..100)
        .map(|user| ban(&marks, Subject::user(format!("u{user}")), Some(HOUR_US), START))
        .collect();
    for mark in &first {
        assert_eq!(marks.set(mark, START), SetOutcome::New);
    }
    for flood in 0..10_000_u64 {
        let now = later(flood);
        let other = ban(&marks, Subject::user(format!("flood{flood}")), Some(9 * HOUR_US), now);
        assert_eq!(marks.set(&other, now), SetOutcome::Full);
    }
    assert!(first.iter().all(|mark| holds(&marks, mark, later(10_000))));
    assert_eq!((marks.count(MarkKind::Ban), marks.refused(MarkKind::Ban)), (100, 10_000));
    let after = later(HOUR_US);
    let next = ban(&marks, Subject::user("next"), Some(HOUR_US), after);
    assert_eq!(marks.set(&next, after), SetOutcome::New, "those that have ended make room");
    assert_eq!(marks.list(MarkKind::Ban, None, 999, after), [next]);
}

#[test]
fn threads_together_stay_within_the_bound() {
    let marks = marks(50);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let marks = &marks;
            scope.spawn(move || {
                for user in 0..200 {
                    let subject = Subject::user(format!("{thread}-{user}"));
                    marks.set(&ban(marks, subject, None, START), START);
                }
            });
        }
    });
    assert_eq!(marks.count(MarkKind::Ban), 50);
    assert_eq!(marks.list(MarkKind::Ban, None, 999, START).len(), 50);
    assert_eq!(marks.refused(MarkKind::Ban), 750);
}

#[test]
fn flags_and_factors_take_no_room_from_bans() {
    let marks = marks(1);
    let mut flag = ban(&marks, Subject::user("u"), None, START);
    (flag.kind, flag.flag) = (MarkKind::Flag, Some("review".to_owned()));
    assert_eq!(marks.set(&flag, START), SetOutcome::New);
    assert_eq!(marks.set(&ban(&marks, Subject::user("u"), None, START), START), SetOutcome::New);
}

#[test]
fn of_two_bans_the_one_that_ends_later_stays() {
    let marks = marks(9);
    let of = |for_us| ban(&marks, Subject::user("u"), for_us, START);
    assert_eq!(marks.set(&of(Some(HOUR_US)), START), SetOutcome::New);
    assert_eq!(marks.set(&of(Some(HOUR_US / 2)), START), SetOutcome::Unchanged);
    assert!(holds(&marks, &of(None), later(HOUR_US - 1)));
    assert_eq!(marks.set(&of(Some(2 * HOUR_US)), START), SetOutcome::Changed);
    assert!(holds(&marks, &of(None), later(HOUR_US)), "the earlier end is forgotten");
    assert_eq!(marks.set(&of(None), START), SetOutcome::Changed);
    assert_eq!(marks.set(&of(Some(9 * HOUR_US)), START), SetOutcome::Unchanged);
    assert!(holds(&marks, &of(None), later(99 * HOUR_US)));
    assert_eq!(marks.count(MarkKind::Ban), 1);
}

#[test]
fn a_wall_clock_that_steps_moves_no_end_but_what_is_shown() {
    let marks = marks(9);
    let mark = ban(&marks, Subject::user("u"), Some(HOUR_US), START);
    marks.set(&mark, START);
    for unix_us in [0, START.unix_us * 5] {
        let stepped = Now { steady_us: START.steady_us + HOUR_US - 1, unix_us };
        let shown = marks.get(MarkKind::Ban, mark.id, stepped).unwrap();
        assert_eq!(shown.until_unix_us, Some(unix_us + 1));
        assert_eq!(shown.time_left(stepped), Some(Duration::from_micros(1)));
        let ended = Now { steady_us: START.steady_us + HOUR_US, unix_us };
        assert!(!holds(&marks, &mark, ended));
    }
}

#[test]
fn a_mark_travels_in_unix_time_to_a_clock_with_another_origin() {
    let (here, there) = (marks(9), marks(9));
    let mark = ban(&here, Subject::user("u"), Some(HOUR_US), START);
    here.set(&mark, START);
    let other = Now { steady_us: 5, unix_us: START.unix_us + HOUR_US / 2 };
    assert!(there.apply(&MarkChange::Set(mark.clone()), other));
    assert!(!there.apply(&MarkChange::Set(mark.clone()), other), "the same again is nothing new");
    let at = |us| Now { steady_us: 5 + us, unix_us: 0 };
    assert!(holds(&there, &mark, at(HOUR_US / 2 - 1)) && !holds(&there, &mark, at(HOUR_US / 2)));
    assert!(there.apply(&MarkChange::Removed { id: mark.id, kind: mark.kind }, other));
    assert!(!holds(&there, &mark, other));
}

#[test]
fn what_was_exported_holds_again_after_a_restart_also_under_another_secret() {
    let before = marks(9);
    before.set(&ban(&before, Subject::user("u"), Some(HOUR_US), START), START);
    before.set(&ban(&before, Subject::user("short"), Some(1_000), START), START);
    before.set(&ban(&before, Subject::user("for-good"), None, START), START);
    let saved = serde_json::to_string(&before.export(START)).unwrap();
    let saved: Vec<Mark> = serde_json::from_str(&saved).unwrap();
    let after = Marks::new(HashKey::new([8; 16]), 9);
    let restarted = Now { steady_us: 77, unix_us: START.unix_us + 1_000 };
    assert_eq!(after.import(saved, restarted), 2, "one has ended meanwhile");
    let known = after.get(
        MarkKind::Ban,
        after.id_of(MarkKind::Ban, Some("api"), None, &Subject::user("u")),
        restarted,
    );
    assert_eq!(known.unwrap().time_left(restarted), Some(Duration::from_micros(HOUR_US - 1_000)));
}

#[test]
fn another_secret_makes_other_ids_and_forgets_nobody() {
    let marks = marks(9);
    let mark = ban(&marks, Subject::user("u"), Some(HOUR_US), START);
    marks.set(&mark, START);
    let late = ban(&marks, Subject::user("late"), None, START);
    marks.rekey(HashKey::new([9; 16]), START);
    assert!(holds(&marks, &mark, START), "who looks for the earlier id still finds it");
    assert!(holds(&marks, &ban(&marks, Subject::user("u"), None, START), START));
    marks.set(&late, START);
    marks.drop_old_ids(START);
    assert!(!holds(&marks, &mark, START));
    assert!(holds(&marks, &ban(&marks, Subject::user("late"), None, START), START));
    marks.remove(MarkKind::Ban, ban(&marks, Subject::user("late"), None, START).id);
    assert!(holds(&marks, &ban(&marks, Subject::user("u"), None, START), START));
    assert_eq!(marks.count(MarkKind::Ban), 1);
}

#[test]
fn pages_have_every_mark_once_in_order() {
    let marks = marks(999);
    for user in 0..500 {
        marks.set(&ban(&marks, Subject::user(format!("u{user}")), None, START), START);
    }
    let (mut all, mut after) = (Vec::new(), None);
    loop {
        let page = marks.list(MarkKind::Ban, after, 7, START);
        after = page.last().map(|mark| mark.id);
        all.extend(page.into_iter().map(|mark| mark.id));
        if after.is_none() {
            break;
        }
    }
    assert_eq!(all.len(), 500);
    assert!(all.is_sorted_by(|a, b| a < b));
}

#[test]
fn one_request_drops_some_expired_bans_and_the_next_ones_the_rest() {
    let marks = marks(999);
    let mark = |user| ban(&marks, Subject::user(format!("u{user}")), Some(HOUR_US), START);
    for user in 0..500 {
        marks.set(&mark(user), START);
    }
    let after = later(HOUR_US);
    marks.drop_expired_bans(after);
    let left = marks.count(MarkKind::Ban);
    assert!((400..500).contains(&left), "{left}");
    assert!((0..500).all(|user| !holds(&marks, &mark(user), after)));
    let again = |user| ban(&marks, Subject::user(format!("u{user}")), Some(HOUR_US), after);
    assert!((0..20).all(|user| marks.set(&again(user), after) == SetOutcome::New));
    for _ in 0..8 {
        marks.drop_expired_bans(after);
    }
    assert_eq!(marks.count(MarkKind::Ban), 20);
}

#[test]
fn a_long_subject_is_kept_in_few_bytes_and_is_the_same_subject() {
    let long = "ä".repeat(30_000);
    let several = || {
        let part = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        Subject::of_parts(vec![part("ip", "192.0.2.1"), part("email", &long)])
    };
    let client = || Subject::client(format!("user:{long}"));
    let (marks, recorder) = (marks(9), Arc::new(Recorder::default()));
    marks.set_sink(Arc::clone(&recorder) as Arc<dyn MarkSink>);
    for subject in [Subject::user(&*long), client(), Subject::part("email", &*long), several()] {
        let mark = ban(&marks, subject.clone(), Some(HOUR_US), START);
        assert_eq!(marks.set(&mark, START), SetOutcome::New);
        let kept = marks.get(MarkKind::Ban, mark.id, START).unwrap();
        assert!(kept.subject.parts().all(|(_, value)| value.len() <= 256), "{}", kept.subject);
        assert_eq!(marks.id_of(MarkKind::Ban, Some("api"), None, &kept.subject), mark.id);
        assert_eq!(recorder.0.lock().unwrap().pop(), Some(MarkChange::Set(kept)));
    }
    let other = Subject::user(format!("{long}!"));
    assert!(!holds(&marks, &ban(&marks, other, None, START), START));
}

#[test]
fn a_factor_ends_when_it_is_one_and_when_it_has_not_moved_for_long() {
    let marks = marks(9);
    let factor = |ppm| Mark {
        kind: MarkKind::Factor,
        factor_ppm: Some(ppm),
        ..ban(&marks, Subject::user("u"), None, START)
    };
    marks.set(&factor(2 * PPM), START);
    assert!(holds(&marks, &factor(PPM), later(FACTOR_LASTS_US - 1)));
    assert!(!holds(&marks, &factor(PPM), later(FACTOR_LASTS_US)));
    assert_eq!(marks.set(&factor(PPM), START), SetOutcome::Changed);
    assert_eq!(marks.set(&factor(PPM), START), SetOutcome::Unchanged);
    assert_eq!(marks.count(MarkKind::Factor), 0);
}

#[derive(Default)]
struct Recorder(Mutex<Vec<MarkChange>>);

impl MarkSink for Recorder {
    fn changed(&self, change: &MarkChange) {
        self.0.lock().unwrap().push(change.clone());
    }
}

#[test]
fn others_are_told_of_what_changes_here_alone() {
    let (marks, recorder) = (marks(9), Arc::new(Recorder::default()));
    marks.set_sink(Arc::clone(&recorder) as Arc<dyn MarkSink>);
    let (mine, theirs) = (
        ban(&marks, Subject::user("mine"), None, START),
        ban(&marks, Subject::user("theirs"), None, START),
    );
    marks.set(&mine, START);
    marks.set(&mine, START);
    marks.apply(&MarkChange::Set(theirs), START);
    marks.remove(MarkKind::Ban, mine.id);
    let recorder = recorder.0.lock().unwrap();
    let removed = MarkChange::Removed { id: mine.id, kind: MarkKind::Ban };
    assert_eq!(*recorder, [MarkChange::Set(mine), removed]);
}

/// Holds up the first change until somebody else has begun another of the same mark.
struct SlowSink {
    recorder: Recorder,
    others: std::sync::Barrier,
}

impl MarkSink for SlowSink {
    fn changed(&self, change: &MarkChange) {
        if matches!(change, MarkChange::Set(_)) {
            self.others.wait();
            std::thread::yield_now();
        }
        self.recorder.changed(change);
    }
}

#[test]
fn others_are_told_of_a_mark_in_the_order_of_its_changes() {
    for _ in 0..200 {
        let marks = marks(9);
        let others = std::sync::Barrier::new(2);
        let slow = Arc::new(SlowSink { recorder: Recorder::default(), others });
        marks.set_sink(Arc::clone(&slow) as Arc<dyn MarkSink>);
        let mark = ban(&marks, Subject::user("u"), None, START);
        std::thread::scope(|scope| {
            scope.spawn(|| marks.set(&mark, START));
            slow.others.wait();
            assert!(marks.remove(MarkKind::Ban, mark.id));
        });
        let removed = MarkChange::Removed { id: mark.id, kind: MarkKind::Ban };
        assert_eq!(*slow.recorder.0.lock().unwrap(), [MarkChange::Set(mark), removed]);
    }
}

#[test]
fn the_prefix_lengths_to_look_up_are_those_of_banned_networks() {
    let marks = marks(9);
    for net in ["10.0.0.0/8", "192.0.2.0/24", "0.0.0.0/0", "2001:db8::/32", "::/0", "::1/128"] {
        marks.set(&ban(&marks, Subject::network(net.parse().unwrap()), None, START), START);
    }
    let of = |ip: &str| marks.banned_prefix_lengths(ip.parse().unwrap()).collect::<Vec<u8>>();
    assert_eq!(of("192.0.2.1"), [0, 8, 24]);
    assert_eq!(of("2001:db8::1"), [0, 32, 128]);
}

proptest! {
    /// Random changes at random times against a plain map.
    #[test]
    fn bans_are_those_of_a_plain_map(
        steps in proptest::collection::vec((0..8_u8, 0..4_u8, 1..500_u64, 0..200_u64), 1..120)
    ) {
        let marks = marks(5);
        let mut known: std::collections::HashMap<Key, u64> = std::collections::HashMap::new();
        let mut now = START;
        for (user, action, for_us, wait_us) in steps {
            now = Now { steady_us: now.steady_us + wait_us, unix_us: now.unix_us + wait_us };
            known.retain(|_, until_us| *until_us > now.steady_us);
            let mark = ban(&marks, Subject::user(format!("u{user}")), Some(for_us), now);
            if action == 0 {
                let there = marks.remove(MarkKind::Ban, mark.id);
                let was = known.remove(&mark.id).is_some();
                prop_assert!(there || !was);
            } else {
                let until_us = now.steady_us + for_us;
                let room = known.len() < 5;
                let expected = match known.get(&mark.id) {
                    Some(held) if *held >= until_us => SetOutcome::Unchanged,
                    Some(_) => SetOutcome::Changed,
                    None if room => SetOutcome::New,
                    None => SetOutcome::Full,
                };
                if expected != SetOutcome::Full {
                    let held = known.entry(mark.id).or_insert(until_us);
                    *held = (*held).max(until_us);
                }
                prop_assert_eq!(marks.set(&mark, now), expected);
            }
            for user in 0..8 {
                let id = marks.id_of(MarkKind::Ban, Some("api"), None, &Subject::user(format!("u{user}")));
                prop_assert_eq!(marks.get(MarkKind::Ban, id, now).is_some(), known.contains_key(&id));
            }
        }
        marks.drop_expired_bans(later(u64::from(u32::MAX)));
        prop_assert_eq!(marks.count(MarkKind::Ban), 0);
        prop_assert!(!marks.has_bans(SubjectKind::User, false));
    }
}
