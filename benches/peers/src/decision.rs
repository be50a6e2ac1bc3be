//! A whole decision of a realistic policy, alone and in batches, against one check of each peer.

use std::collections::HashMap;
use std::hint::black_box;

use limitador::RateLimiter;
use limitador::limit::{Context, Limit, Namespace};
use tidegate::engine::store::Memory;
use tidegate::{Limiter, Policy, Request};

use crate::keyed::PLENTY;
use crate::population::{KEYS, Population};
use crate::rounds::{Checks, nanoseconds};
use crate::table::Table;

pub(crate) const POLICY: &str = include_str!("../../policies/realistic.yaml");
const ROOMS: usize = 1_000;
/// A kilobyte a key: more would not fit a cache, and would make the peer slower.
const LIMITADOR_KEYS: usize = 100_000;

/// Measures decisions.
pub fn measure(table: &mut Table) {
    let population = Population::uniform();
    let paths: Vec<String> = (0..ROOMS).map(|room| format!("/rooms/r{room}/bookings")).collect();
    let booking = |turn: usize| {
        Request::new("POST", &*paths[turn % ROOMS]).user(&**population.key(turn)).tier("plus")
    };
    let policy = Policy::parse("realistic.yaml", POLICY).unwrap();
    // Every limit of the policy has an equal share, with room for all users.
    let store = Memory::with_max_keys(KEYS * 2 * policy.limits().len());
    let limiter = Limiter::builder().policy(policy).store(store).build().unwrap();
    let governor = PLENTY.governor();
    for key in population.each() {
        let request = Request::new("POST", &*paths[0]).user(&**key).tier("plus");
        assert_eq!(limiter.check(&request).unwrap().limits.len(), 3);
        assert!(governor.check_key(key).is_ok());
    }
    assert_eq!(limiter.store().evicted_keys(), 0);
    let (limitador, namespace) = limitador();
    let candidates: [Checks<'_>; 5] = [
        Box::new(|turns| {
            for turn in turns {
                assert!(black_box(&limiter.check(&booking(turn)).unwrap()).is_allowed());
            }
        }),
        Box::new(|turns| {
            for turn in turns {
                black_box(governor.check_key(population.key(turn)).is_ok());
            }
        }),
        Box::new(|turns| {
            for turn in turns {
                let context = context(&population, turn % LIMITADOR_KEYS);
                let checked = limitador.check_rate_limited_and_update(&namespace, &context, 1);
                assert!(!black_box(checked.unwrap()).limited);
            }
        }),
        Box::new(|turns| batches::<16>(&limiter, booking, turns)),
        Box::new(|turns| batches::<64>(&limiter, booking, turns)),
    ];
    let ns = nanoseconds(1, &candidates);
    let [ours, governor, limitador, by_16, by_64] = ns[..] else { return };
    table.add("decision, three of 12 limits; governor: one check", "ns", ours, governor, Some(2.0));
    table.add("the same; limitador: one check", "ns", ours, limitador, Some(0.1));
    table.add("decisions by 16, each; governor: one check", "ns", by_16, governor, None);
    table.add("decisions by 64, each; governor: one check", "ns", by_64, governor, None);
}

fn batches<'r, const SIZE: usize>(
    limiter: &Limiter,
    booking: impl Fn(usize) -> Request<'r>,
    turns: std::ops::Range<usize>,
) {
    let mut requests = Vec::with_capacity(SIZE);
    for from in turns.step_by(SIZE) {
        requests.clear();
        requests.extend((from..from + SIZE).map(&booking));
        black_box(limiter.check_batch(&requests));
    }
}

/// One limit by user, with a condition, as its documentation has it.
fn limitador() -> (RateLimiter, Namespace) {
    let limiter = RateLimiter::new(LIMITADOR_KEYS as u64 * 2);
    let conditions = vec!["req_method == 'POST'".try_into().unwrap()];
    let variables = vec!["user_id".try_into().unwrap()];
    limiter.add_limit(Limit::new("hostel", 1_000_000_000, 60, conditions, variables));
    (limiter, "hostel".into())
}

/// The context of a request, which limitador needs anew for each.
fn context(population: &Population, turn: usize) -> Context<'static> {
    let said = [("req_method", "POST"), ("user_id", population.key(turn))];
    let said: HashMap<String, String> =
        said.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    said.into()
}
