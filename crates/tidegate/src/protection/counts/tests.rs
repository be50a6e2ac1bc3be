use std::time::Duration;

use proptest::prelude::*;

use crate::clock::FakeClock;
use crate::limiter::Limiter;
use crate::policy::Policy;
use crate::protection::events::Report;
use crate::request::Request;
use crate::units::Amount;

const START: u64 = 1_767_603_600;
const WITHIN_US: u64 = 60_000_000;

fn limiter(rest: &str) -> (Limiter, FakeClock) {
    let text = format!("tidegate: 1\nname: t\n{rest}");
    let policy = Policy::parse("t.yaml", &text).unwrap_or_else(|errors| panic!("{errors}"));
    let clock = FakeClock::at_unix_seconds(START);
    (Limiter::builder().policy(policy).clock(clock.clone()).build().unwrap(), clock)
}

proptest! {
    /// A count is that of a list of all instants, at every event, whatever comes before.
    #[test]
    fn counts_are_those_of_a_plain_list(
        events in proptest::collection::vec((0..3_usize, 0..20_000_000_u64, 0..12_u8), 1..150)
    ) {
        let (limiter, clock) = limiter("
events: { bad: {}, good: {} }
penalties:
  p:
    event: bad
    by: user
    within: 1min
    forgive: good
    ladder: { 1: { warn: a1 }, 2: { warn: a2 }, 4: { warn: a4 }, 7: { warn: a7 } }
");
        let mut lists: [Vec<u64>; 3] = Default::default();
        let mut now_us = 0;
        for (user, wait_us, kind) in events {
            clock.advance(Duration::from_micros(wait_us));
            now_us += wait_us;
            let name = ["u0", "u1", "u2"][user];
            let request = Request::default().user(name);
            let event = if kind == 0 { "good" } else { "bad" };
            let reported = limiter.report(&Report::new(event, request)).unwrap();
            let list = &mut lists[user];
            if kind == 0 {
                list.clear();
                prop_assert!(reported.warnings.is_empty());
                continue;
            }
            list.push(now_us);
            let within = list.iter().filter(|at| **at + WITHIN_US > now_us).count();
            let expected = match within {
                1 => "a1",
                2..=3 => "a2",
                4..=6 => "a4",
                _ => "a7",
            };
            prop_assert_eq!(&reported.warnings, &[expected.to_owned()], "of {}", within);
        }
    }

    /// What happens once happens as often as the count comes to its step from below; who is only told
    /// is told once in the span.
    #[test]
    fn a_step_is_reached_when_the_plain_count_comes_to_it(
        waits in proptest::collection::vec(1_000..30_000_000_u64, 1..120)
    ) {
        let (limiter, clock) = limiter("
events: { bad: {} }
penalties:
  p: { event: bad, by: user, within: 1min, ladder: { 3: { notify: n }, 5: { ban: 1ms }, 6: {} } }
notify: { n: { webhook: 'https://hooks.example.org/x' } }
");
        let (mut list, mut now_us, mut told_us) = (Vec::new(), 0, None);
        for wait_us in waits {
            clock.advance(Duration::from_micros(wait_us));
            now_us += wait_us;
            list.push(now_us);
            let within = list.iter().filter(|at| **at + WITHIN_US > now_us).count();
            let report = Report::new("bad", Request::default().user("u"));
            let reported = limiter.report(&report).unwrap();
            let tells = within == 3 && told_us.is_none_or(|at_us| at_us + WITHIN_US <= now_us);
            if tells {
                told_us = Some(now_us);
            }
            let expected = usize::from(tells || within == 5);
            prop_assert_eq!(reported.effects.len(), expected, "{}", within);
        }
    }

    /// Within one window, where nothing has faded, sums are exact: the share is compared to the last
    /// millionth.
    #[test]
    fn ratios_are_those_of_plain_sums(
        events in proptest::collection::vec((any::<bool>(), 1..1_000_000_u64), 1..60),
        above in 1..100_u64,
    ) {
        let (limiter, clock) = limiter(&format!("
events: {{ order: {{}}, cancel: {{}} }}
ratios:
  r: {{ of: cancel, to: order, by: user, within: 1day, at_least: 5, above: {above}%, then: {{ warn: w }} }}
"));
        let (mut of, mut to, mut orders) = (0_u128, 0_u128, 0);
        for (is_order, micros) in events {
            clock.advance(Duration::from_millis(10));
            let value = Amount::from_micros(micros).unwrap();
            let event = if is_order { "order" } else { "cancel" };
            if is_order {
                (to, orders) = (to + u128::from(micros), orders + 1);
            } else {
                of += u128::from(micros);
            }
            let report = Report::new(event, Request::default().user("u")).value(value);
            let reported = limiter.report(&report).unwrap();
            let expected = orders >= 5 && of * 100 > to * u128::from(above);
            prop_assert_eq!(!reported.warnings.is_empty(), expected, "{} of {}", of, to);
        }
    }
}

#[test]
fn a_flood_of_reports_of_random_subjects_stays_within_the_stores_bound() {
    let text = "
tidegate: 1
name: t
events: { bad: {} }
penalties: { p: { event: bad, by: user, within: 1h, ladder: { 3: { ban: 1h } } } }
";
    let policy = Policy::parse("t.yaml", text).unwrap();
    let clock = FakeClock::at_unix_seconds(START);
    let store = std::sync::Arc::new(crate::store::Memory::with_max_keys(500));
    let limiter = Limiter::builder().policy(policy).clock(clock.clone());
    let limiter = limiter.store(std::sync::Arc::clone(&store)).max_bans(3).build().unwrap();
    let report =
        |user: &str| limiter.report(&Report::new("bad", Request::default().user(user))).unwrap();
    for _ in 0..3 {
        report("first");
    }
    for flood in 0..5_000 {
        clock.advance(Duration::from_micros(10));
        for _ in 0..3 {
            report(&format!("flood{flood}"));
        }
    }
    assert!(store.keys() <= 500, "{}", store.keys());
    assert!(limiter.marks().count(crate::protection::marks::MarkKind::Ban) <= 3);
    assert!(report("first").banned, "no flood ends a ban");
}
