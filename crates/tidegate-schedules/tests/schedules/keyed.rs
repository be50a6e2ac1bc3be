//! One limit by a key of one's own: charged singly and in batches while keys come, move and go. Its secret
//! is the machine's choice, so that a schedule that fails may pass when it is run again.

use std::num::NonZeroU32;
use std::time::Duration;

use tidegate_schedules::engine::algorithm::Verdict;
use tidegate_schedules::{Keyed, Rate};

use crate::{at_once, each_schedule};

/// A bucket of this many, which do not come back meanwhile.
fn bucket(limit: u32) -> Keyed {
    let rate = Rate::new(1, Duration::from_secs(1_000 * 86_400)).unwrap();
    Keyed::token_bucket(rate.burst(NonZeroU32::new(limit).unwrap())).unwrap()
}

fn allowed(verdicts: &[Verdict]) -> usize {
    verdicts.iter().filter(|verdict| **verdict == Verdict::Allowed).count()
}

#[test]
fn no_charge_is_lost_while_a_segment_is_split() {
    each_schedule(60, || {
        // The first segment is split when it has 320 keys, and the next soon after.
        let keyed = bucket(4);
        let keys: Vec<String> = (0..317).map(|key| format!("old {key}")).collect();
        let mut verdicts = Vec::new();
        keyed.check_all(&keys, &mut verdicts);
        assert_eq!(allowed(&verdicts), keys.len());
        let some: Vec<&str> = keys.iter().step_by(30).map(String::as_str).collect();
        let counts = at_once(3, |thread| match thread {
            0 => {
                (0..12).filter(|key| keyed.check(&format!("new {key}")) == Verdict::Allowed).count()
            }
            1 => some.iter().filter(|key| keyed.check(key) == Verdict::Allowed).count(),
            _ => {
                let mut verdicts = Vec::new();
                keyed.check_all(&some, &mut verdicts);
                allowed(&verdicts)
            }
        });
        assert_eq!(counts, [12, some.len(), some.len()]);
        assert_eq!(keyed.keys(), 329);
        for key in some {
            assert_eq!(keyed.check(key), Verdict::Allowed, "the last that {key} has");
            assert_ne!(keyed.check(key), Verdict::Allowed, "{key} has used it all");
        }
    });
}

#[test]
fn a_busy_key_is_charged_as_often_as_it_may_be_while_others_make_room() {
    const LIMIT: usize = 9;
    each_schedule(80, || {
        let keyed = bucket(LIMIT.try_into().unwrap()).with_max_keys(5);
        // It has used more than any other, so that it never has to go.
        assert!((0..2).all(|_| keyed.check("busy") == Verdict::Allowed));
        let counts = at_once(3, |thread| {
            let mut verdicts = Vec::new();
            for batch in 0..3 {
                let others = (0..3).map(|key| format!("{thread} {batch} {key}"));
                let keys: Vec<String> = others.chain(["busy".to_owned()]).collect();
                if thread == 0 {
                    verdicts.extend(keys.iter().map(|key| keyed.check(key)));
                } else {
                    keyed.check_all(&keys, &mut verdicts);
                }
            }
            let busy: Vec<Verdict> = verdicts.chunks(4).map(|batch| batch[3]).collect();
            assert_eq!(allowed(&verdicts) - allowed(&busy), 9, "the others are new");
            allowed(&busy)
        });
        assert_eq!(counts.iter().sum::<usize>(), LIMIT - 2);
        assert_eq!(keyed.keys(), 5);
    });
}
