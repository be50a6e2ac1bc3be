use std::time::Duration;

use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{Reading, concurrency, token_bucket, total};
use tidegate::engine::plan::{Mode, PerLevel};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::Reply;

use super::refusals::REFUSALS_MAX;
use super::*;

const SECOND_US: u64 = 1_000_000;

fn bucket() -> Spec {
    let count = Amount::ONE;
    Spec::TokenBucket(token_bucket::Spec { count, period_us: SECOND_US, burst: count })
}

fn level(key: u128, spec: Spec) -> Level {
    Level {
        limit: 0,
        family: 7,
        key: Key(key),
        spec,
        cost: Amount::ONE,
        refundable: false,
        reserved: false,
        leased: false,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    }
}

fn plan(levels: &[Level]) -> Plan {
    let now = Now { steady_us: 0, unix_us: 0 };
    let names = levels.iter().map(|level| format!("api:calls:{}", level.key).into()).collect();
    let levels = levels.iter().copied().collect();
    Plan { mode: Mode::Charge, now, holder: 0, levels, names }
}

/// One verdict for each level: denied for so long, or allowed.
fn answer(waits_us: &[Option<u64>]) -> Answer {
    let reply = |wait_us: &Option<u64>| Reply {
        verdict: match wait_us {
            Some(_) => Verdict::Denied { retry_after: wait_us.map(Duration::from_micros) },
            None => Verdict::Allowed,
        },
        charged: false,
        charged_at_us: 0,
        reading: Reading { available: Amount::ZERO, reset_us: Some(5 * SECOND_US) },
    };
    let replies: PerLevel<Reply> = waits_us.iter().map(reply).collect();
    Answer { now: Now { steady_us: 900, unix_us: 1_000 }, replies }
}

fn subscribed() -> NegativeCache {
    let cache = NegativeCache::default();
    cache.set_subscribed(true);
    cache
}

/// Asks at 100, and has the answer at 150.
fn refuse(cache: &NegativeCache, plan: &Plan, waits_us: &[Option<u64>]) {
    let start = cache.start_call(100);
    cache.insert(plan, &answer(waits_us), start, 150);
}

fn is_cached(cache: &NegativeCache, plan: &Plan, now_us: u64) -> bool {
    cache.find(plan, || now_us).is_some()
}

#[test]
fn a_refusal_holds_until_its_time_as_counted_from_when_it_was_asked_for() {
    let (cache, plan) = (subscribed(), plan(&[level(1, bucket())]));
    refuse(&cache, &plan, &[Some(1_000)]);
    assert!(is_cached(&cache, &plan, 1_099));
    assert!(!is_cached(&cache, &plan, 1_100));
    assert_eq!(cache.health().hits, 1);
}

#[test]
fn what_is_told_counts_down_from_when_the_answer_was_here() {
    let (cache, plan) = (subscribed(), plan(&[level(1, bucket())]));
    refuse(&cache, &plan, &[Some(1_000)]);
    let told = cache.find(&plan, || 400).unwrap();
    assert_eq!(told.now, Now { steady_us: 1_150, unix_us: 1_250 });
    assert_eq!(
        told.replies[0].verdict,
        Verdict::Denied { retry_after: Some(Duration::from_micros(750)) }
    );
    assert_eq!(told.replies[0].reading.reset_us, Some(5 * SECOND_US - 250));
    assert!(!told.replies[0].charged);
}

#[test]
fn no_refusal_is_cached_for_longer_than_a_second() {
    let (cache, plan) = (subscribed(), plan(&[level(1, bucket())]));
    refuse(&cache, &plan, &[Some(3_600 * SECOND_US)]);
    assert!(is_cached(&cache, &plan, 100 + SECOND_US - 1));
    assert!(!is_cached(&cache, &plan, 100 + SECOND_US));
}

#[test]
fn the_first_level_that_may_be_free_ends_the_whole_answer() {
    let (cache, plan) = (subscribed(), plan(&[level(1, bucket()), level(2, bucket())]));
    refuse(&cache, &plan, &[Some(5_000), Some(1_000)]);
    assert!(is_cached(&cache, &plan, 1_099));
    assert!(!is_cached(&cache, &plan, 1_100));
}

#[test]
fn what_passes_or_is_given_back_as_a_matter_of_course_is_not_cached() {
    let places = Spec::Concurrency(concurrency::Spec { places: Amount::ONE, lease_us: SECOND_US });
    let once = Spec::Total(total::Spec { limit: Amount::ONE });
    let refundable = Level { refundable: true, ..level(1, bucket()) };
    let reserved = Level { reserved: true, ..level(1, bucket()) };
    for one in [level(1, places), level(1, once), refundable, reserved] {
        let (cache, plan) = (subscribed(), plan(&[level(2, bucket()), one]));
        refuse(&cache, &plan, &[Some(1_000), Some(1_000)]);
        assert_eq!(cache.health().refusals, 0, "{one:?}");
        refuse(&cache, &plan, &[Some(1_000), None]);
        assert!(is_cached(&cache, &plan, 200), "another level refuses, and holds: {one:?}");
    }
    let (cache, warned) =
        (subscribed(), Level { enforcement: Enforcement::Warn, ..level(1, bucket()) });
    refuse(&cache, &plan(&[warned]), &[Some(1_000)]);
    refuse(&cache, &plan(&[level(1, bucket())]), &[None]);
    assert_eq!(cache.health().refusals, 0);
}

#[test]
fn only_a_plan_that_cannot_fare_better_is_answered() {
    let cache = subscribed();
    let (denied, allowed) = (level(1, bucket()), level(2, bucket()));
    let two = Amount::from_units(2).unwrap();
    let asked = Level { cost: two, ..denied };
    refuse(&cache, &plan(&[asked, Level { cost: two, ..allowed }]), &[Some(1_000), None]);
    let larger = Spec::TokenBucket(token_bucket::Spec {
        count: Amount::ONE,
        period_us: SECOND_US,
        burst: two,
    });
    let three = Amount::from_units(3).unwrap();
    for (levels, expected) in [
        ([asked, Level { cost: two, ..allowed }], true),
        ([Level { cost: three, ..denied }, allowed], true),
        ([denied, allowed], false),
        ([asked, Level { cost: three, ..allowed }], false),
        ([Level { spec: larger, ..asked }, allowed], false),
        ([Level { refundable: true, ..asked }, allowed], false),
        ([Level { reserved: true, ..asked }, allowed], false),
        ([Level { enforcement: Enforcement::Shadow, ..asked }, allowed], false),
        ([asked, level(3, bucket())], false),
    ] {
        assert_eq!(is_cached(&cache, &plan(&levels), 200), expected, "{levels:?}");
    }
    assert!(!is_cached(&cache, &plan(&[asked]), 200));
}

#[test]
fn a_change_ends_the_refusals_that_it_touches() {
    let other = Level { family: 8, ..level(2, bucket()) };
    let (one, other) = (plan(&[level(1, bucket())]), plan(&[other]));
    for (changed, expected) in [
        (Invalidation::Key(one.names[0].clone()), (false, true)),
        (Invalidation::Key("api:calls:unheard-of".into()), (true, true)),
        (Invalidation::Family(8), (true, false)),
        (Invalidation::All, (false, false)),
    ] {
        let cache = subscribed();
        refuse(&cache, &one, &[Some(1_000)]);
        refuse(&cache, &other, &[Some(1_000)]);
        cache.receive(&invalidation::write(std::slice::from_ref(&changed)));
        let found = (is_cached(&cache, &one, 200), is_cached(&cache, &other, 200));
        assert_eq!(found, expected, "{changed:?}");
    }
}

#[test]
fn an_answer_that_a_change_overtook_is_not_cached() {
    let (cache, plan) = (subscribed(), plan(&[level(1, bucket())]));
    let start = cache.start_call(100);
    cache.forget(&Invalidation::Key(plan.names[0].clone()));
    cache.insert(&plan, &answer(&[Some(1_000)]), start, 150);
    assert_eq!(cache.health().refusals, 0);
}

#[test]
fn a_node_that_is_not_subscribed_caches_nothing() {
    let (cache, plan) = (subscribed(), plan(&[level(1, bucket())]));
    refuse(&cache, &plan, &[Some(1_000)]);
    cache.set_subscribed(false);
    assert!(!is_cached(&cache, &plan, 200));
    refuse(&cache, &plan, &[Some(1_000)]);
    assert!(!is_cached(&cache, &plan, 200));
    assert_eq!(cache.health().refusals, 0);
}

/// What other nodes are told of amendments.
fn published(amendments: &[Amendment]) -> Vec<Invalidation> {
    let cache = NegativeCache::default();
    cache.invalidate_amended(amendments);
    lock(&cache.outgoing.changes).clone()
}

#[test]
fn refunds_and_resets_are_published() {
    let amendment = |change, spec| Amendment {
        level: level(1, spec),
        name: Some("api:calls:1".into()),
        charged_at_us: 0,
        holder: 0,
        change,
    };
    let once = Spec::Total(total::Spec { limit: Amount::ONE });
    let amendments = [
        amendment(Change::Refund(Amount::ONE), bucket()),
        amendment(Change::Surcharge(Amount::ONE), bucket()),
        amendment(Change::Reset, once),
        amendment(Change::Reset, bucket()),
    ];
    let key = Invalidation::Key("api:calls:1".into());
    assert_eq!(published(&amendments), [key.clone(), key]);
}

#[test]
fn a_refund_is_published_only_where_a_node_may_cache_a_refusal() {
    let refund = |level| Amendment {
        level,
        name: Some("api:calls:1".into()),
        charged_at_us: 0,
        holder: 0,
        change: Change::Refund(Amount::ONE),
    };
    let refundable = Level { refundable: true, ..level(1, bucket()) };
    assert_eq!(published(&[refund(refundable)]), []);
    let reserved = Level { reserved: true, ..level(1, bucket()) };
    assert_eq!(published(&[refund(reserved)]).len(), 1, "others may not have reserved");
}

#[test]
fn their_number_is_bounded_and_those_that_end_first_go() {
    let cache = subscribed();
    let many = u64::try_from(2 * SHARDS * REFUSALS_MAX).unwrap();
    for number in 0..many {
        let plan = plan(&[level(u128::from(number), bucket())]);
        refuse(&cache, &plan, &[Some(1_000 + number)]);
        assert!(cache.health().refusals <= SHARDS * REFUSALS_MAX);
    }
    assert!(!is_cached(&cache, &plan(&[level(0, bucket())]), 200));
    assert!(is_cached(&cache, &plan(&[level(u128::from(many - 1), bucket())]), 200));
    let start = cache.start_call(2 * SECOND_US);
    for number in 0..16 {
        let plan = plan(&[level(number, bucket())]);
        cache.insert(&plan, &answer(&[Some(9)]), start, 2 * SECOND_US + 1);
    }
    assert_eq!(cache.health().refusals, 16, "what is over makes room");
}
