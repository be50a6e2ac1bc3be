//! However marks come and go, requests find those that are there, and the filter keeps nothing of those
//! that are not.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::*;
use crate::context::Context;
use crate::policy::Policy;
use crate::policy::model::Part;
use crate::request::Request;

fn policy() -> Policy {
    Policy::parse("p.yaml", "{tidegate: 1, name: api}").unwrap()
}

/// What requests find under a secret, by their user.
struct Seeker {
    policy: Policy,
    bans: Sought,
    factors: Sought,
}

impl Seeker {
    fn new(secret: [u8; 16]) -> Self {
        let (policy, secret) = (policy(), HashKey::new(secret));
        let sought =
            |kind, name| Sought::new(&secret, kind, Some("api"), name, &[Part::User], &policy);
        let (bans, factors) = (sought(MarkKind::Ban, None), sought(MarkKind::Factor, Some("p")));
        Self { policy, bans, factors }
    }

    fn is_banned(&self, marks: &Marks, user: &str, now: Now) -> bool {
        let request = Request::new("GET", "/").user(user);
        let context = Context::gather(&self.policy, &request).unwrap();
        marks.find(&self.bans, &context, now).is_some()
    }

    fn factor(&self, marks: &Marks, user: &str, now: Now) -> Option<u64> {
        let request = Request::new("GET", "/").user(user);
        let context = Context::gather(&self.policy, &request).unwrap();
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

fn is_blank(marks: &Marks) -> bool {
    marks.filters.iter().all(Filter::is_blank)
}

#[test]
fn a_ban_is_found_from_when_it_is_set_until_it_is_lifted() {
    let (marks, seeker) = (marks(9), Seeker::new([7; 16]));
    assert!(!seeker.is_banned(&marks, "u", START));
    let mark = user_ban(&marks, "u", None);
    assert_eq!(marks.put(&mark, START), Set::New);
    assert_eq!(marks.put(&mark, START), Set::Kept);
    assert!(seeker.is_banned(&marks, "u", START));
    assert!(!seeker.is_banned(&marks, "v", START));
    assert!(marks.take(MarkKind::Ban, mark.id));
    assert!(!marks.take(MarkKind::Ban, mark.id));
    assert!(!seeker.is_banned(&marks, "u", START) && is_blank(&marks));
}

#[test]
fn a_ban_that_takes_the_place_of_another_is_found_and_ends_once() {
    let (marks, seeker) = (marks(9), Seeker::new([7; 16]));
    for hours in 1..=3 {
        marks.put(&user_ban(&marks, "u", Some(hours * HOUR_US)), START);
    }
    assert!(seeker.is_banned(&marks, "u", later(3 * HOUR_US - 1)));
    assert!(!seeker.is_banned(&marks, "u", later(3 * HOUR_US)));
    assert!(!is_blank(&marks), "nobody has swept");
    marks.sweep_bans(later(3 * HOUR_US));
    assert!(is_blank(&marks));
}

#[test]
fn bans_that_find_no_room_or_are_over_leave_nothing() {
    let marks = marks(1);
    let first = user_ban(&marks, "u", Some(HOUR_US));
    marks.put(&first, START);
    for number in 0..100 {
        let set = marks.put(&user_ban(&marks, &number.to_string(), None), START);
        assert_eq!(set, Set::Full);
    }
    assert_eq!(marks.put(&user_ban(&marks, "v", Some(1)), later(5)), Set::Kept, "over already");
    marks.take(MarkKind::Ban, first.id);
    assert!(is_blank(&marks));
}

#[test]
fn bans_that_end_are_forgotten_by_those_that_come() {
    let (marks, seeker) = (marks(999), Seeker::new([7; 16]));
    for number in 0..500 {
        marks.put(&user_ban(&marks, &number.to_string(), Some(HOUR_US)), START);
    }
    let after = later(HOUR_US);
    for number in 0..20 {
        marks.put(&ban(&marks, Subject::user(format!("new{number}")), None, after), after);
    }
    assert!((0..500).all(|number| !seeker.is_banned(&marks, &number.to_string(), after)));
    assert!((0..20).all(|number| seeker.is_banned(&marks, &format!("new{number}"), after)));
    for mark in marks.list(MarkKind::Ban, None, 99, after) {
        marks.take(MarkKind::Ban, mark.id);
    }
    assert!(is_blank(&marks), "those that had ended went with the sweeps of those that came");
}

#[test]
fn a_ban_that_another_process_made_or_lifted_is_heard_of() {
    let (here, there, seeker) = (marks(9), marks(9), Seeker::new([7; 16]));
    let long = "x".repeat(999);
    for user in ["u", &long] {
        let mark = user_ban(&here, user, Some(HOUR_US));
        let heard = Arc::new(Heard::default());
        here.put(&mark, START);
        there.set_sink(Arc::clone(&heard) as Arc<dyn MarkSink>);
        let told = here.get(MarkKind::Ban, mark.id, START).unwrap();
        assert!(there.apply(&MarkChange::Set(told.clone()), START));
        assert!(!there.apply(&MarkChange::Set(told), START));
        assert!(seeker.is_banned(&there, user, START));
        assert!(there.apply(&MarkChange::Removed { id: mark.id, kind: MarkKind::Ban }, START));
        assert!(!there.apply(&MarkChange::Removed { id: mark.id, kind: MarkKind::Ban }, START));
        assert!(!seeker.is_banned(&there, user, START) && is_blank(&there));
    }
}

#[test]
fn a_ban_that_was_kept_over_a_restart_is_found_under_another_secret_too() {
    let (before, after) = (marks(9), Marks::new(HashKey::new([8; 16]), 9));
    before.put(&user_ban(&before, "u", Some(HOUR_US)), START);
    assert_eq!(after.import(before.export(START), START), 1);
    assert_eq!(after.import(before.export(START), START), 0);
    assert!(Seeker::new([8; 16]).is_banned(&after, "u", START));
    assert!(!Seeker::new([7; 16]).is_banned(&after, "u", START));
    after.sweep_bans(later(HOUR_US));
    assert!(is_blank(&after));
}

#[test]
fn while_the_secret_changes_a_ban_is_found_under_both_and_then_under_the_new_one() {
    let marks = marks(9);
    let (old, new) = (Seeker::new([7; 16]), Seeker::new([9; 16]));
    marks.put(&user_ban(&marks, "u", None), START);
    let late = user_ban(&marks, "late", None);
    marks.rekey(HashKey::new([9; 16]), START);
    marks.put(&late, START);
    assert!(old.is_banned(&marks, "u", START) && new.is_banned(&marks, "u", START));
    assert!(old.is_banned(&marks, "late", START), "set under the old one meanwhile");
    marks.drop_old_ids(START);
    assert!(["u", "late"].iter().all(|user| new.is_banned(&marks, user, START)));
    assert!(["u", "late"].iter().all(|user| !old.is_banned(&marks, user, START)));
    for user in ["u", "late"] {
        assert!(marks.take(MarkKind::Ban, user_ban(&marks, user, None).id));
    }
    assert!(is_blank(&marks));
}

#[test]
fn a_factor_is_found_while_it_is_not_one() {
    let (marks, seeker) = (marks(9), Seeker::new([7; 16]));
    let of = |user| seeker.factor(&marks, user, START);
    assert_eq!(of("u"), None);
    for ppm in [2 * PPM, 3 * PPM] {
        marks.put(&factor(&marks, "u", ppm), START);
        assert_eq!((of("u"), of("v")), (Some(ppm), None));
    }
    marks.put(&factor(&marks, "u", PPM), START);
    assert!(of("u").is_none() && is_blank(&marks));
    marks.put(&factor(&marks, "old", 2 * PPM), START);
    let after = later(FACTOR_LASTS_US);
    marks.put(&Mark { since_unix_us: after.unix_us, ..factor(&marks, "new", 2 * PPM) }, after);
    assert_eq!(seeker.factor(&marks, "old", after), None);
    assert_eq!(seeker.factor(&marks, "new", after), Some(2 * PPM));
    marks.take(MarkKind::Factor, factor(&marks, "new", PPM).id);
    assert!(is_blank(&marks), "a factor that came has swept the one that had ended");
}

#[test]
fn a_ban_is_found_by_all_threads_from_when_it_is_set_whatever_else_comes_and_goes() {
    let (marks, seeker) = (marks(100_000), Seeker::new([7; 16]));
    let (set, done) = (AtomicUsize::new(0), AtomicBool::new(false));
    let name = |number: usize| format!("u{number}");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let others = || (0..50).map(|number| user_ban(&marks, &format!("x{number}"), None));
                assert!(others().all(|mark| marks.put(&mark, START) == Set::New));
                assert!(others().all(|mark| marks.take(MarkKind::Ban, mark.id)));
            }
        });
        scope.spawn(|| {
            for number in 0..3_000 {
                marks.put(&user_ban(&marks, &name(number), None), START);
                set.store(number + 1, Ordering::Release);
            }
        });
        let mut seen = 0;
        while seen < 3_000 {
            let now = set.load(Ordering::Acquire);
            assert!((seen..now).all(|number| seeker.is_banned(&marks, &name(number), START)));
            assert!(now == 0 || seeker.is_banned(&marks, &name(now / 2), START), "an earlier one");
            seen = now;
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!((0..3_000).all(|number| seeker.is_banned(&marks, &name(number), START)));
}
