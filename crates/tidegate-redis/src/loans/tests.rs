use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Spec, Verdict, ceiling, token_bucket, total};
use tidegate::engine::plan::{Enforcement, Level, Mode, Plan};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::{Amendment, Answer, Change, Reply};

use super::{LoanHealth, LoanReply, LoanRequest, LoanTable};

const UNIT: u64 = 1_000_000;
const LASTS_US: u64 = 3_000_000;

fn amount(micros: u64) -> Amount {
    Amount::from_micros(micros).unwrap()
}

fn bucket(burst: u64) -> Spec {
    let (count, burst) = (amount(100 * UNIT), amount(burst * UNIT));
    Spec::TokenBucket(token_bucket::Spec { count, period_us: UNIT, burst })
}

fn level(key: u128, spec: Spec) -> Level {
    Level {
        limit: 0,
        family: 3,
        key: Key(key),
        spec,
        cost: Amount::ONE,
        refundable: true,
        reserved: false,
        leased: true,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    }
}

fn plan(levels: &[Level]) -> Plan {
    Plan {
        mode: Mode::Charge,
        now: Now { steady_us: 0, unix_us: 0 },
        holder: 1,
        levels: levels.iter().copied().collect(),
        names: levels.iter().map(|level| format!("key {:?}", level.key).into()).collect(),
    }
}

fn reply(granted: u64) -> LoanReply {
    let (epoch, available) = (77, 50 * UNIT);
    LoanReply { now_us: 9_000, granted, epoch, lasts_us: LASTS_US, available, outstanding: granted }
}

fn answer(plan: &Plan, verdict: Verdict) -> Answer {
    let charged = verdict == Verdict::Allowed;
    let reading = tidegate::engine::algorithm::Reading { available: Amount::ONE, reset_us: None };
    let reply = Reply { verdict, charged, charged_at_us: 5, reading };
    let now = Now { steady_us: 5, unix_us: 5 };
    Answer { now, replies: plan.levels.iter().map(|_| reply).collect() }
}

/// Asks until it is time to borrow, and has so much granted.
fn borrowing(table: &LoanTable, level: &Level, granted: u64, now_us: u64) -> LoanRequest {
    for _ in 0..2 {
        assert!(table.begin(&plan(&[*level]), now_us).remainder.is_none());
    }
    let loan = table.take_due(now_us).remove(0);
    table.apply_reply(&loan, Some(&reply(granted)), now_us);
    loan
}

fn spends(table: &LoanTable, level: &Level, now_us: u64) -> bool {
    table.decide(&plan(&[*level]), now_us).is_some()
}

#[test]
fn as_much_is_spent_as_was_granted_and_no_more() {
    let (table, level) = (LoanTable::default(), level(1, bucket(100)));
    assert!(!spends(&table, &level, 0));
    borrowing(&table, &level, 5 * UNIT, 0);
    assert_eq!((0..9).filter(|_| spends(&table, &level, 1)).count(), 5);
}

#[test]
fn a_lease_runs_out_counted_from_when_it_was_asked_for() {
    let (table, level) = (LoanTable::default(), level(1, bucket(100)));
    for _ in 0..2 {
        _ = table.begin(&plan(&[level]), 1_000);
    }
    let loan = table.take_due(1_000).remove(0);
    table.apply_reply(&loan, Some(&reply(9 * UNIT)), 600_000);
    assert!(spends(&table, &level, 1_000 + LASTS_US - 1));
    assert!(!spends(&table, &level, 1_000 + LASTS_US));
    assert_eq!(table.health().expired, 8 * UNIT);
}

#[test]
fn a_key_that_was_asked_for_once_borrows_nothing() {
    let (table, level) = (LoanTable::default(), level(1, bucket(100)));
    assert!(table.begin(&plan(&[level]), 0).remainder.is_none());
    assert!(!table.has_due() && table.take_due(0).is_empty());
}

#[test]
fn it_is_time_to_borrow_again_at_thirty_per_cent() {
    let (table, level) = (LoanTable::default(), level(1, bucket(100)));
    borrowing(&table, &level, 10 * UNIT, 0);
    for _ in 0..6 {
        assert!(spends(&table, &level, 1) && !table.has_due());
    }
    assert!(spends(&table, &level, 1) && table.has_due());
    let loan = table.take_due(2).remove(0);
    assert_eq!((loan.reports[0].epoch, loan.reports[0].spent), (77, 7 * UNIT));
    assert_eq!(loan.reports[0].returned, 0);
    assert!(spends(&table, &level, 2) && !table.has_due(), "one loan at a time");
    table.apply_reply(&loan, Some(&reply(10 * UNIT)), 3);
    assert_eq!((0..30).filter(|_| spends(&table, &level, 4)).count(), 12);
}

#[test]
fn a_loan_that_got_lost_is_not_repeated() {
    let (table, level) = (LoanTable::default(), level(1, bucket(100)));
    borrowing(&table, &level, 10 * UNIT, 0);
    for _ in 0..7 {
        spends(&table, &level, 1);
    }
    let loan = table.take_due(1).remove(0);
    table.apply_reply(&loan, None, 20_000);
    assert!(spends(&table, &level, 21_000) && !table.has_due(), "not at once");
    assert!(spends(&table, &level, 200_000) && table.has_due());
    let again = table.take_due(200_000).remove(0);
    assert_eq!(again.reports[0].spent, 2 * UNIT, "only what was spent since");
}

#[test]
fn small_buckets_and_other_algorithms_are_not_divided() {
    let table = LoanTable::default();
    table.set_nodes(3);
    assert!(table.is_lendable(&level(1, bucket(12))) && !table.met_too_small());
    assert!(!table.is_lendable(&level(1, bucket(11))) && table.met_too_small());
    let total = Spec::Total(total::Spec { limit: amount(900 * UNIT) });
    assert!(!table.is_lendable(&level(1, total)));
    assert!(!table.is_lendable(&Level { leased: false, ..level(1, bucket(12)) }));
}

#[test]
fn levels_are_spent_together_or_not_at_all() {
    let (table, one, other) = (LoanTable::default(), level(1, bucket(100)), level(2, bucket(100)));
    borrowing(&table, &one, 3 * UNIT, 0);
    assert!(table.decide(&plan(&[one, other]), 1).is_none());
    assert_eq!(table.spendable(1), 3 * UNIT);
    borrowing(&table, &other, 5 * UNIT, 1);
    assert!(table.decide(&plan(&[one, other]), 2).is_some());
    assert_eq!(table.spendable(2), 6 * UNIT);
}

#[test]
fn what_the_store_refuses_is_put_back() {
    let (table, leased) = (LoanTable::default(), level(1, bucket(100)));
    let exact = Level { leased: false, ..level(2, bucket(100)) };
    borrowing(&table, &leased, 5 * UNIT, 0);
    let both = plan(&[leased, exact]);
    let denied = Verdict::Denied { retry_after: Some(Duration::from_micros(9)) };
    for (verdict, left) in [(denied, 5), (Verdict::Allowed, 4)] {
        let partial = table.begin(&both, 1);
        let rest = partial.remainder.clone().unwrap();
        assert_eq!((rest.levels.len(), rest.names.len()), (1, 1));
        assert_eq!(rest.levels[0], exact);
        let told = Ok::<_, ()>(answer(&rest, verdict));
        let answer = table.finish(&both, &partial, told, 1).unwrap();
        assert_eq!(answer.replies.len(), 2);
        assert_eq!(answer.replies[0].charged, verdict == Verdict::Allowed);
        assert_eq!(answer.replies[1].verdict, verdict);
        assert_eq!(table.spendable(1), left * UNIT);
    }
    let partial = table.begin(&both, 1);
    assert_eq!(table.finish(&both, &partial, Err("lost"), 1), Err("lost"));
    assert_eq!(table.spendable(1), 4 * UNIT);
}

#[test]
fn ceilings_need_no_store_unless_they_refuse() {
    let (table, leased) = (LoanTable::default(), level(1, bucket(100)));
    let ceiling = |limit| Level {
        leased: false,
        ..level(0, Spec::Ceiling(ceiling::Spec { limit: amount(limit) }))
    };
    borrowing(&table, &leased, 5 * UNIT, 0);
    assert!(table.decide(&plan(&[leased, ceiling(UNIT)]), 1).is_some());
    assert!(table.decide(&plan(&[leased, ceiling(1)]), 1).is_none());
    assert!(
        table.decide(&plan(&[ceiling(UNIT)]), 1).is_none(),
        "for the store, which knows the time"
    );
    assert_eq!(table.spendable(1), 4 * UNIT);
}

#[test]
fn looking_spends_nothing() {
    let (table, leased) = (LoanTable::default(), level(1, bucket(100)));
    borrowing(&table, &leased, 5 * UNIT, 0);
    let look = Plan { mode: Mode::Peek, ..plan(&[leased]) };
    let told = table.decide(&look, 1).unwrap();
    assert!(!told.replies[0].charged && told.replies[0].verdict == Verdict::Allowed);
    assert_eq!(
        told.replies[0].reading.available,
        amount(55 * UNIT + 100),
        "with what the store had"
    );
    assert_eq!(told.now.unix_us, 9_001);
    assert_eq!(table.spendable(1), 5 * UNIT);
}

#[test]
fn who_needs_more_than_is_left_returns_it_first() {
    let (table, leased) = (LoanTable::default(), level(1, bucket(100)));
    borrowing(&table, &leased, 5 * UNIT, 0);
    let large = Level { cost: amount(6 * UNIT), ..leased };
    assert!(table.decide(&plan(&[large]), 200_000).is_none());
    let partial = table.begin(&plan(&[large]), 200_000);
    assert!(partial.remainder.is_none());
    assert_eq!(partial.requests[0].reports[0].returned, 5 * UNIT);
    assert_eq!(table.spendable(200_000), 0);
}

#[test]
fn what_nobody_asks_for_is_given_back_once() {
    let (table, leased) = (LoanTable::default(), level(1, bucket(100)));
    borrowing(&table, &leased, 5 * UNIT, 0);
    spends(&table, &leased, 10);
    assert!(table.sweep(900_000).is_empty());
    let loan = table.sweep(1_100_000).remove(0);
    assert_eq!((loan.wish, loan.reports[0].spent, loan.reports[0].returned), (0, UNIT, 4 * UNIT));
    assert!(!spends(&table, &leased, 1_100_001));
    assert!(table.sweep(1_200_000).is_empty());
    table.apply_reply(&loan, Some(&reply(0)), 1_300_000);
    assert!(table.sweep(9_000_000).is_empty());
    assert_eq!(
        table.health(),
        LoanHealth { granted: 1, spent: 1, exact: 2, returned: 4 * UNIT, ..LoanHealth::default() }
    );
}

#[test]
fn at_the_end_everything_is_given_back_and_nothing_borrowed() {
    let (table, one, other) = (LoanTable::default(), level(1, bucket(100)), level(2, bucket(100)));
    borrowing(&table, &one, 5 * UNIT, 0);
    borrowing(&table, &other, 7 * UNIT, 0);
    let loans = table.close(10);
    let returned: u64 = loans.iter().map(|loan| loan.reports[0].returned).sum();
    assert_eq!((loans.len(), returned), (2, 12 * UNIT));
    for now_us in [20, 30, 40] {
        assert!(!spends(&table, &one, now_us));
        assert!(table.begin(&plan(&[one]), now_us).requests.is_empty() && !table.has_due());
    }
}

#[test]
fn what_was_lent_under_another_spec_is_given_back() {
    let (table, old) = (LoanTable::default(), level(1, bucket(100)));
    borrowing(&table, &old, 5 * UNIT, 0);
    let new = level(1, bucket(50));
    assert!(!spends(&table, &new, 200_000));
    let partial = table.begin(&plan(&[new]), 200_000);
    assert!(partial.requests.is_empty() && table.spendable(200_000) == 0);
    _ = table.begin(&plan(&[new]), 200_001);
    let loan = table.take_due(200_002).remove(0);
    assert_eq!((loan.level.spec, loan.reports[0].returned), (new.spec, 5 * UNIT));
    // What was on its way is of no use either.
    table.apply_reply(&LoanRequest { level: old, ..loan }, Some(&reply(9 * UNIT)), 200_003);
    assert_eq!(table.spendable(200_003), 0);
}

#[test]
fn what_was_spent_here_is_refunded_here_until_it_is_reported() {
    let (table, leased) = (LoanTable::default(), level(1, bucket(100)));
    borrowing(&table, &leased, 10 * UNIT, 0);
    let spend = |holder| table.decide(&Plan { holder, ..plan(&[leased]) }, 1).is_some();
    let refund = |holder| {
        let (name, change) = (None, Change::Refund(Amount::ONE));
        let amendment = Amendment { level: leased, name, charged_at_us: 0, holder, change };
        let could = table.can_amend(&amendment, 2);
        assert_eq!(table.amend(&amendment, 2), could);
        could
    };
    assert!(spend(5) && spend(6) && spend(7));
    assert!(refund(6) && !refund(6), "once");
    assert!(!refund(8), "by somebody who spent elsewhere");
    assert_eq!(table.spendable(2), 8 * UNIT);
    for holder in 20..25 {
        spend(holder);
    }
    let loan = table.take_due(3).remove(0);
    assert_eq!(loan.reports[0].spent, 7 * UNIT);
    assert!(!refund(5), "the store has heard that it is spent");
}

#[test]
fn a_surcharge_is_spent_here_if_it_is_there() {
    let (table, leased) = (LoanTable::default(), level(1, bucket(100)));
    borrowing(&table, &leased, 10 * UNIT, 0);
    let surcharge = |units: u64| {
        let (name, change) = (None, Change::Surcharge(amount(units * UNIT)));
        let amendment = Amendment { level: leased, name, charged_at_us: 0, holder: 1, change };
        let could = table.can_amend(&amendment, 2);
        assert_eq!(table.amend(&amendment, 2), could);
        could
    };
    assert!(surcharge(4) && !surcharge(7) && surcharge(6));
    assert_eq!(table.spendable(2), 0);
}

#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    Request { cost: u64, refunds: bool },
    Answer { granted: u64, lost: bool },
    Sweep,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        2 => prop_oneof![0..50_000_u64, 0..2_000_000_u64].prop_map(Step::Wait),
        6 => (1..4_u64, any::<bool>())
            .prop_map(|(cost, refunds)| Step::Request { cost: cost * UNIT, refunds }),
        3 => (0..20_u64, any::<bool>())
            .prop_map(|(units, lost)| Step::Answer { granted: units * UNIT, lost }),
        1 => Just(Step::Sweep),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// Whatever happens: of each grant no more is spent and returned than it was, nothing after it
    /// ran out, and nothing is reported twice.
    #[test]
    fn no_grant_is_spent_twice(steps in steps()) {
        let (table, level, mut now_us) = (LoanTable::default(), level(1, bucket(100)), 0);
        let (mut under_way, mut epoch) = (Vec::new(), 0);
        // By epoch, each of one grant: what is not yet spent or returned, and when it runs out.
        let mut grants: BTreeMap<u64, (i64, u64)> = BTreeMap::new();
        let mut spent = 0_i64;
        for (number, step) in steps.into_iter().enumerate() {
            let number = u64::try_from(number).unwrap();
            match step {
                Step::Wait(us) => now_us += us,
                Step::Sweep => under_way.extend(table.sweep(now_us)),
                Step::Request { cost, refunds } => {
                    let plan = Plan { holder: number, ..plan(&[Level { cost: amount(cost), ..level }]) };
                    if table.decide(&plan, now_us).is_some() {
                        spent += i64::try_from(cost).unwrap();
                        let change = Change::Refund(amount(cost));
                        let (level, holder) = (plan.levels[0], number);
                        let refund = Amendment { level, name: None, charged_at_us: 0, holder, change };
                        if refunds && table.amend(&refund, now_us) {
                            spent -= i64::try_from(cost).unwrap();
                        }
                    } else {
                        under_way.extend(table.begin(&plan, now_us).requests);
                    }
                    under_way.extend(table.take_due(now_us));
                }
                Step::Answer { granted, lost } => {
                    let Some(loan) = under_way.pop() else { continue };
                    for report in &loan.reports {
                        let grant = grants.get_mut(&report.epoch).unwrap();
                        grant.0 -= i64::try_from(report.spent + report.returned).unwrap();
                        prop_assert!(grant.0 >= 0, "{report:?}");
                        spent -= i64::try_from(report.spent).unwrap();
                    }
                    if lost {
                        table.apply_reply(&loan, None, now_us);
                    } else {
                        epoch += 1;
                        let granted = granted.min(loan.wish);
                        let until_us = loan.sent_us + LASTS_US;
                        grants.insert(epoch, (i64::try_from(granted).unwrap(), until_us));
                        let granted = LoanReply { granted, epoch, ..reply(0) };
                        table.apply_reply(&loan, Some(&granted), now_us);
                    }
                }
            }
            let alive = grants.values().filter(|(_, until_us)| *until_us > now_us);
            let alive: i64 = alive.map(|(left, _)| *left).sum();
            prop_assert!(i64::try_from(table.spendable(now_us)).unwrap() <= alive);
            // What the table has spent since it last told is part of what was granted.
            let granted: i64 = grants.values().map(|(left, _)| *left).sum();
            prop_assert!(spent <= granted, "{spent} of {granted}");
        }
    }
}
