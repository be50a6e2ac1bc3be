//! Bans, which are looked for without a lock.

use tidegate_schedules::engine::store::Memory;
use tidegate_schedules::{Limiter, NewMark, Outcome, Subject};

use crate::limiter::{THREADS, check, limiter};
use crate::{at_once, each_schedule};

fn ban(limiter: &Limiter<Memory>, user: &str) {
    limiter.ban(&NewMark::new(Subject::user(user))).unwrap();
}

fn lift(limiter: &Limiter<Memory>, user: &str) {
    assert!(limiter.unban(None, &Subject::user(user)));
}

const ANY: &str = "each: { by: user, token_bucket: 1/s burst 1000 }";

#[test]
fn a_ban_holds_as_soon_as_it_is_made_and_until_it_is_lifted() {
    each_schedule(100, || {
        let (limiter, _) = limiter(ANY, 1_000);
        at_once(THREADS, |thread| {
            for turn in 0..5 {
                let user = &format!("u{thread}-{}", turn % 2);
                assert!(check(&limiter, user).is_allowed());
                ban(&limiter, user);
                assert_eq!(check(&limiter, user).outcome, Outcome::Banned);
                lift(&limiter, user);
            }
        });
    });
}

#[test]
fn bans_hold_while_others_come_and_go() {
    // With so many, some share the words that say who may be banned, and these are made anew.
    const STANDING: usize = 190;
    each_schedule(40, || {
        let (limiter, _) = limiter(ANY, 1_000);
        let standing = |user| format!("standing {user}");
        (0..STANDING).for_each(|user| ban(&limiter, &standing(user)));
        at_once(4, |thread| {
            if thread < 2 {
                let users: Vec<String> = (0..12).map(|user| format!("u{thread}-{user}")).collect();
                users.iter().for_each(|user| ban(&limiter, user));
                users.iter().for_each(|user| lift(&limiter, user));
                return;
            }
            for user in (0..STANDING).rev() {
                assert_eq!(check(&limiter, &standing(user)).outcome, Outcome::Banned);
            }
        });
    });
}
