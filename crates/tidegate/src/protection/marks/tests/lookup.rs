//! However marks come and go, requests find those that are there, and the counters return to zero with
//! the last of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::context::Context;
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::request::Request;

fn policy() -> Arc<Policy> {
    Policy::parse("p.yaml", "{tidegate: 1, name: api}").unwrap().into()
}

/// Looks up the marks of users under a secret, as requests do.
struct Finder {
    policy: Arc<Policy>,
    bans: MarkKeys,
    factors: MarkKeys,
}

impl Finder {
    fn new(secret: [u8; 16]) -> Self {
        let (policy, secret) = (policy(), HashKey::new(secret));
        let keys =
            |kind, name| MarkKeys::new(&secret, kind, Some("api"), name, &[Part::User], &policy);
        let (bans, factors) = (keys(MarkKind::Ban, None), keys(MarkKind::Factor, Some("p")));
        Self { policy, bans, factors }
    }

    fn is_banned(&self, marks: &Marks, user: &str, now: Now) -> bool {
        let request = Request::new("GET", "/").user(user);
        let context = Context::under(&self.policy, &request);
        marks.get(MarkKind::Ban, self.bans.id(&context).unwrap(), now).is_some()
    }

    fn factor(&self, marks: &Marks, user: &str, now: Now) -> Option<u64> {
        let request = Request::new("GET", "/").user(user);
        let context = Context::under(&self.policy, &request);
        marks.factor(&self.factors, &context, now).map(|(ppm, _)| ppm)
    }
}

fn user_ban(marks: &Marks, user: &str, for_us: Option<u64>) -> Mark {
    ban(marks, Subject::user(user), for_us, START)
}

fn factor(marks: &Marks, user: &str, ppm: u64) -> Mark {
    let subject = Subject::user(user);
    Mark {
        id: marks.id_of(MarkKind::Factor, Some("api"), Some("p"), &subject),
        kind: MarkKind::Factor,
        factor_ppm: Some(ppm),
        ..ban(marks, subject, None, START)
    }
}

/// Whether the counters that requests read say that there are no marks.
fn has_none(marks: &Marks) -> bool {
    let kinds = [MarkKind::Ban, MarkKind::Factor];
    let has_user = |kind| marks.table(kind).subjects().has(SubjectKind::User, false);
    kinds.iter().all(|kind| marks.count(*kind) == 0 && !has_user(*kind))
}

#[test]
fn a_ban_is_found_from_when_it_is_set_until_it_is_lifted() {
    let (marks, finder) = (marks(9), Finder::new([7; 16]));
    assert!(!finder.is_banned(&marks, "u", START));
    let mark = user_ban(&marks, "u", None);
    assert_eq!(marks.set(&mark, START), SetOutcome::New);
    assert_eq!(marks.set(&mark, START), SetOutcome::Unchanged);
    assert!(finder.is_banned(&marks, "u", START));
    assert!(!finder.is_banned(&marks, "v", START));
    assert!(marks.remove(MarkKind::Ban, mark.id));
    assert!(!marks.remove(MarkKind::Ban, mark.id));
    assert!(!finder.is_banned(&marks, "u", START) && has_none(&marks));
}

#[test]
fn a_ban_that_takes_the_place_of_another_is_found_and_ends_once() {
    let (marks, finder) = (marks(9), Finder::new([7; 16]));
    for hours in 1..=3 {
        marks.set(&user_ban(&marks, "u", Some(hours * HOUR_US)), START);
    }
    assert!(finder.is_banned(&marks, "u", later(3 * HOUR_US - 1)));
    assert!(!finder.is_banned(&marks, "u", later(3 * HOUR_US)));
    assert!(!has_none(&marks), "nobody has swept");
    marks.drop_expired_bans(later(3 * HOUR_US));
    assert!(has_none(&marks));
}

#[test]
fn bans_that_find_no_room_or_are_over_leave_nothing() {
    let marks = marks(1);
    let first = user_ban(&marks, "u", Some(HOUR_US));
    marks.set(&first, START);
    for number in 0..100 {
        let set = marks.set(&user_ban(&marks, &number.to_string(), None), START);
        assert_eq!(set, SetOutcome::Full);
    }
    assert_eq!(
        marks.set(&user_ban(&marks, "v", Some(1)), later(5)),
        SetOutcome::Unchanged,
        "over already"
    );
    marks.remove(MarkKind::Ban, first.id);
    assert!(has_none(&marks));
}

#[test]
fn bans_that_end_are_forgotten_by_those_that_come() {
    let (marks, finder) = (marks(999), Finder::new([7; 16]));
    for number in 0..500 {
        marks.set(&user_ban(&marks, &number.to_string(), Some(HOUR_US)), START);
    }
    let after = later(HOUR_US);
    for number in 0..20 {
        marks.set(&ban(&marks, Subject::user(format!("new{number}")), None, after), after);
    }
    assert!((0..500).all(|number| !finder.is_banned(&marks, &number.to_string(), after)));
    assert!((0..20).all(|number| finder.is_banned(&marks, &format!("new{number}"), after)));
    for mark in marks.list(MarkKind::Ban, None, 99, after) {
        marks.remove(MarkKind::Ban, mark.id);
    }
    assert!(has_none(&marks), "those that had ended went with the sweeps of those that came");
}

#[test]
fn a_ban_that_another_process_made_or_lifted_is_applied() {
    let (here, there, finder) = (marks(9), marks(9), Finder::new([7; 16]));
    let long = "x".repeat(999);
    for user in ["u", &long] {
        let mark = user_ban(&here, user, Some(HOUR_US));
        let recorder = Arc::new(Recorder::default());
        here.set(&mark, START);
        there.set_sink(Arc::clone(&recorder) as Arc<dyn MarkSink>);
        let told = here.get(MarkKind::Ban, mark.id, START).unwrap();
        assert!(there.apply(&MarkChange::Set(told.clone()), START));
        assert!(!there.apply(&MarkChange::Set(told), START));
        assert!(finder.is_banned(&there, user, START));
        assert!(there.apply(&MarkChange::Removed { id: mark.id, kind: MarkKind::Ban }, START));
        assert!(!there.apply(&MarkChange::Removed { id: mark.id, kind: MarkKind::Ban }, START));
        assert!(!finder.is_banned(&there, user, START) && has_none(&there));
    }
}

#[test]
fn a_ban_that_was_kept_over_a_restart_is_found_under_another_secret_too() {
    let (before, after) = (marks(9), Marks::new(HashKey::new([8; 16]), 9));
    before.set(&user_ban(&before, "u", Some(HOUR_US)), START);
    assert_eq!(after.import(before.export(START), START), 1);
    assert_eq!(after.import(before.export(START), START), 0);
    assert!(Finder::new([8; 16]).is_banned(&after, "u", START));
    assert!(!Finder::new([7; 16]).is_banned(&after, "u", START));
    after.drop_expired_bans(later(HOUR_US));
    assert!(has_none(&after));
}

#[test]
fn while_the_secret_changes_a_ban_is_found_under_both_and_then_under_the_new_one() {
    let marks = marks(9);
    let (old, new) = (Finder::new([7; 16]), Finder::new([9; 16]));
    marks.set(&user_ban(&marks, "u", None), START);
    let late = user_ban(&marks, "late", None);
    marks.rekey(HashKey::new([9; 16]), START);
    marks.set(&late, START);
    assert!(old.is_banned(&marks, "u", START) && new.is_banned(&marks, "u", START));
    assert!(old.is_banned(&marks, "late", START), "set under the old one meanwhile");
    marks.drop_old_ids(START);
    assert!(["u", "late"].iter().all(|user| new.is_banned(&marks, user, START)));
    assert!(["u", "late"].iter().all(|user| !old.is_banned(&marks, user, START)));
    for user in ["u", "late"] {
        assert!(marks.remove(MarkKind::Ban, user_ban(&marks, user, None).id));
    }
    assert!(has_none(&marks));
}

#[test]
fn a_factor_is_found_while_it_is_not_one() {
    let (marks, finder) = (marks(9), Finder::new([7; 16]));
    let of = |user| finder.factor(&marks, user, START);
    assert_eq!(of("u"), None);
    for ppm in [2 * PPM, 3 * PPM] {
        marks.set(&factor(&marks, "u", ppm), START);
        assert_eq!((of("u"), of("v")), (Some(ppm), None));
    }
    marks.set(&factor(&marks, "u", PPM), START);
    assert!(of("u").is_none() && has_none(&marks));
    marks.set(&factor(&marks, "old", 2 * PPM), START);
    let after = later(FACTOR_LASTS_US);
    marks.set(&Mark { since_unix_us: after.unix_us, ..factor(&marks, "new", 2 * PPM) }, after);
    assert_eq!(finder.factor(&marks, "old", after), None);
    assert_eq!(finder.factor(&marks, "new", after), Some(2 * PPM));
    marks.remove(MarkKind::Factor, factor(&marks, "new", PPM).id);
    assert!(has_none(&marks), "a factor that came has swept the one that had ended");
}

#[test]
fn a_ban_is_found_by_all_threads_from_when_it_is_set_whatever_else_comes_and_goes() {
    let (marks, finder) = (marks(100_000), Finder::new([7; 16]));
    let (set, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let name = |number: usize| format!("u{number}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let others = || (0..50).map(|number| user_ban(&marks, &format!("x{number}"), None));
                assert!(others().all(|mark| marks.set(&mark, START) == SetOutcome::New));
                assert!(others().all(|mark| marks.remove(MarkKind::Ban, mark.id)));
            }
        });
        scope.spawn(|| {
            for number in 0..3_000 {
                marks.set(&user_ban(&marks, &name(number), None), START);
                set.store(number + 1, Ordering::Release);
            }
        });
        let mut seen = 0;
        while seen < 3_000 {
            let now = set.load(Ordering::Acquire);
            assert!((seen..now).all(|number| finder.is_banned(&marks, &name(number), START)));
            assert!(now == 0 || finder.is_banned(&marks, &name(now / 2), START), "an earlier one");
            seen = now;
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!((0..3_000).all(|number| finder.is_banned(&marks, &name(number), START)));
}
