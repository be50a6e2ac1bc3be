//! Ladders: what happens once in a run of the count, also where its moment was missed.

use tidegate::{Effect, NewMark, Report, Subject};

use crate::{Desk, seconds, user};

fn policy(ladder: &str) -> String {
    format!(
        "
events: {{ bad: {{}} }}
penalties: {{ p: {{ event: bad, by: user, within: 1h, ladder: {{ {ladder} }} }} }}
notify: {{ n: {{ webhook: 'https://hooks.example.org/x' }} }}
"
    )
}

/// An event, and how many bans and notices it led to.
fn bad(desk: &Desk) -> [usize; 2] {
    let effects = desk.limiter.report_now(&Report::new("bad", user("u1"))).unwrap().effects;
    let bans = effects.iter().filter(|effect| matches!(effect, Effect::Banned { .. }));
    let notices = effects.iter().filter(|effect| matches!(effect, Effect::Notify(_)));
    [bans.count(), notices.count()]
}

fn bads(desk: &Desk, times: usize) -> Vec<[usize; 2]> {
    (0..times).map(|_| bad(desk)).collect()
}

#[test]
fn rule_6_a_ban_comes_again_when_the_count_has_fallen_below_its_step_and_not_before() {
    let desk = Desk::with_policy(&policy("3: { ban: 1min, notify: n }, 9: {}"));
    assert_eq!(bads(&desk, 3), [[0, 0], [0, 0], [1, 1]]);
    for _ in 0..20 {
        desk.wait(seconds(1_000));
        assert_eq!(bad(&desk), [0, 0], "the count stays at three or four");
    }
    desk.wait(seconds(2_000));
    assert_eq!(bads(&desk, 2), [[1, 1], [0, 0]], "of four, two are left: this is the third again");
}

#[test]
fn rule_6_a_ban_that_an_operator_has_lifted_does_not_come_again_while_the_count_stays() {
    let desk = Desk::with_policy(&policy("3: { ban: 1h }, 9: {}"));
    bads(&desk, 3);
    assert!(desk.limiter.unban(Some("desk"), &Subject::user("u1")));
    for _ in 0..100 {
        desk.wait(seconds(600));
        assert_eq!(bad(&desk), [0, 0]);
    }
}

#[test]
fn rule_6_a_step_that_a_reload_moves_below_the_count_is_taken_late_and_once() {
    let desk = Desk::with_policy(&policy("9: { ban: 1h, notify: n }"));
    assert_eq!(bads(&desk, 5), [[0, 0]; 5]);
    desk.reload(&policy("4: { ban: 1h, notify: n }, 9: {}"));
    assert_eq!(bad(&desk), [0, 0], "somebody may be about to take it");
    desk.wait(seconds(5));
    assert_eq!(bads(&desk, 3), [[1, 1], [0, 0], [0, 0]]);
}

#[test]
fn rule_6_a_missed_step_is_not_taken_where_its_mark_stands() {
    let desk = Desk::with_policy(&policy("9: {}"));
    bads(&desk, 5);
    let order = NewMark::new(Subject::user("u1")).policy("desk").lasts(seconds(30));
    desk.limiter.ban(&order).unwrap();
    desk.reload(&policy("4: { ban: 1h, notify: n }, 9: {}"));
    bad(&desk);
    for _ in 0..20 {
        desk.wait(seconds(10));
        assert_eq!(bad(&desk), [0, 0]);
    }
}

#[test]
fn rule_6_who_is_only_told_is_told_once_in_the_span() {
    let desk = Desk::with_policy(&policy("2: { notify: n }, 9: {}"));
    let mut told = Vec::new();
    for _ in 0..7 {
        // Each event is the second of its hour: the count falls to one and comes to two.
        desk.wait(seconds(1_900));
        told.push(bad(&desk)[1]);
    }
    assert_eq!(told, [0, 1, 0, 1, 0, 1, 0]);
}
