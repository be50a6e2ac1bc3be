//! Rule 6: a step bans, flags and notifies once while the count stays, and a missed step is taken late.

use tidegate::engine::Effect;
use tidegate::{NewMark, Report, Subject};

use crate::{Fixture, seconds, user};

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
fn bad(fixture: &Fixture) -> [usize; 2] {
    let effects = fixture.limiter.report(&Report::new("bad", user("u1"))).unwrap().effects;
    let bans = effects.iter().filter(|effect| matches!(effect, Effect::Banned { .. }));
    let notices = effects.iter().filter(|effect| matches!(effect, Effect::Notify(_)));
    [bans.count(), notices.count()]
}

fn bads(fixture: &Fixture, times: usize) -> Vec<[usize; 2]> {
    (0..times).map(|_| bad(fixture)).collect()
}

#[test]
fn a_ban_comes_again_when_the_count_has_fallen_below_its_step_and_not_before_rule_6() {
    let fixture = Fixture::with_policy(&policy("3: { ban: 1min, notify: n }, 9: {}"));
    assert_eq!(bads(&fixture, 3), [[0, 0], [0, 0], [1, 1]]);
    for _ in 0..20 {
        fixture.advance(seconds(1_000));
        assert_eq!(bad(&fixture), [0, 0], "the count stays at three or four");
    }
    fixture.advance(seconds(2_000));
    assert_eq!(
        bads(&fixture, 2),
        [[1, 1], [0, 0]],
        "of four, two are left: this is the third again"
    );
}

#[test]
fn a_ban_that_an_operator_has_lifted_does_not_come_again_while_the_count_stays_rule_6() {
    let fixture = Fixture::with_policy(&policy("3: { ban: 1h }, 9: {}"));
    bads(&fixture, 3);
    assert!(fixture.limiter.unban(Some("desk"), &Subject::user("u1")));
    for _ in 0..100 {
        fixture.advance(seconds(600));
        assert_eq!(bad(&fixture), [0, 0]);
    }
}

#[test]
fn a_step_that_a_reload_moves_below_the_count_is_taken_late_and_once_rule_6() {
    let fixture = Fixture::with_policy(&policy("9: { ban: 1h, notify: n }"));
    assert_eq!(bads(&fixture, 5), [[0, 0]; 5]);
    fixture.reload(&policy("4: { ban: 1h, notify: n }, 9: {}"));
    assert_eq!(bad(&fixture), [0, 0], "somebody may be about to take it");
    fixture.advance(seconds(5));
    assert_eq!(bads(&fixture, 3), [[1, 1], [0, 0], [0, 0]]);
}

#[test]
fn a_missed_step_is_not_taken_while_its_mark_is_in_force_rule_6() {
    let fixture = Fixture::with_policy(&policy("9: {}"));
    bads(&fixture, 5);
    let order = NewMark::new(Subject::user("u1")).policy("desk").lasts(seconds(30));
    fixture.limiter.ban(&order).unwrap();
    fixture.reload(&policy("4: { ban: 1h, notify: n }, 9: {}"));
    bad(&fixture);
    for _ in 0..20 {
        fixture.advance(seconds(10));
        assert_eq!(bad(&fixture), [0, 0]);
    }
}

#[test]
fn a_step_that_only_notifies_does_so_once_in_the_span_rule_6() {
    let fixture = Fixture::with_policy(&policy("2: { notify: n }, 9: {}"));
    let mut told = Vec::new();
    for _ in 0..7 {
        // Each event is the second of its hour: the count falls to one and comes to two.
        fixture.advance(seconds(1_900));
        told.push(bad(&fixture)[1]);
    }
    assert_eq!(told, [0, 1, 0, 1, 0, 1, 0]);
}
