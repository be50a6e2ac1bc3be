//! What [`Marks::changes`] reports.

use super::*;

const NOW: Now = Now { steady_us: 5_000_000, unix_us: 9_000_000 };

fn ban(marks: &Marks, user: &str, until_unix_us: u64) -> Mark {
    let (kind, subject) = (MarkKind::Ban, Subject::user(user));
    Mark {
        id: marks.id_of(kind, None, None, &subject),
        kind,
        policy: None,
        subject,
        source: "operator".to_owned(),
        reason: String::new(),
        flag: None,
        since_unix_us: NOW.unix_us,
        until_unix_us: Some(until_unix_us),
        factor_ppm: None,
    }
}

#[test]
fn marks_that_are_set_lifted_or_heard_of_are_told_once_as_they_are() {
    let marks = Marks::new(HashKey::new([1; 16]), 10);
    let bans = ["u1", "u2", "u3"].map(|user| ban(&marks, user, 60_000_000));
    marks.set(&bans[0], NOW);
    assert_eq!(marks.changes(NOW).count(), 0, "nobody tracked");
    marks.track_changes();
    assert_eq!(marks.changes(NOW).count(), 0, "what was before is in the export");
    marks.set(&bans[1], NOW);
    marks.apply(&MarkChange::Set(bans[2].clone()), NOW);
    marks.remove(MarkKind::Ban, bans[0].id);
    let told: Vec<MarkChange> = marks.changes(NOW).collect();
    let set = told.iter().filter(|change| matches!(change, MarkChange::Set(_))).count();
    let lifted = MarkChange::Removed { id: bans[0].id, kind: MarkKind::Ban };
    assert_eq!((told.len(), set, told.contains(&lifted)), (3, 2, true), "{told:?}");
    assert!(told.contains(&MarkChange::Set(bans[1].clone())));
    assert_eq!(marks.changes(NOW).count(), 0);
    let longer = ban(&marks, "u2", 90_000_000);
    marks.set(&longer, NOW);
    marks.set(&bans[1], NOW);
    assert_eq!(marks.changes(NOW).collect::<Vec<_>>(), [MarkChange::Set(longer)]);
}

#[test]
fn marks_that_end_or_were_not_there_are_not_told() {
    let marks = Marks::new(HashKey::new([1; 16]), 10);
    marks.track_changes();
    let short = ban(&marks, "u1", 10_000_000);
    marks.set(&short, NOW);
    assert_eq!(marks.changes(NOW).count(), 1);
    let later = Now { steady_us: 7_000_000, unix_us: 11_000_000 };
    marks.drop_expired_bans(later);
    marks.remove(MarkKind::Ban, short.id);
    assert_eq!((marks.count(MarkKind::Ban), marks.changes(later).count()), (0, 0));
}
