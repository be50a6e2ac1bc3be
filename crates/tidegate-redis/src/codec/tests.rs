use proptest::prelude::*;
use tidegate::Key;
use tidegate::algorithm::{Spec, ceiling, fixed_window, token_bucket, total};
use tidegate::plan::{Enforcement, Level, Mode};
use tidegate::policy::OnStoreFailure;
use tidegate::store::Change;

use super::*;

fn level(spec: Spec) -> Level {
    Level {
        limit: 0,
        family: 1,
        key: Key(2),
        spec,
        cost: Amount::ONE,
        refundable: false,
        reserved: false,
        leased: false,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    }
}

const TOTAL: Spec = Spec::Total(total::Spec { limit: Amount::ONE });
const CEILING: Spec = Spec::Ceiling(ceiling::Spec { limit: Amount::ONE });

fn plan(specs: &[Spec]) -> Ask {
    let now = Now { steady_us: 1, unix_us: 2 };
    let levels = specs.iter().map(|spec| level(*spec)).collect();
    let names = specs.iter().enumerate().map(|(index, _)| format!("n{index}").into()).collect();
    Ask::Decide(Plan { mode: Mode::Charge, now, holder: 7, levels, names })
}

fn amendments(count: usize) -> Ask {
    let amendment = Amendment {
        level: level(TOTAL),
        name: Some("n".into()),
        charged_at_us: 5,
        holder: 7,
        change: Change::Refund(Amount::ONE),
    };
    Ask::Amend(vec![amendment; count])
}

/// A reply as the script packs it.
fn packed(code: u8, numbers: [i64; 4]) -> Vec<u8> {
    std::iter::once(code).chain(numbers.into_iter().flat_map(i64::to_le_bytes)).collect()
}

fn replied(now_us: i64, levels: &[Vec<u8>]) -> Vec<u8> {
    [&[0][..], &now_us.to_le_bytes(), &levels.concat()].concat()
}

#[test]
fn keys_are_those_of_levels_that_keep_something() {
    let mut keys = vec![b"of another".to_vec()];
    let argument = encode(&plan(&[TOTAL, CEILING, TOTAL]), "tg:", &mut keys);
    assert_eq!(keys, [&b"of another"[..], b"tg:n0", b"tg:n2"]);
    assert_eq!(argument[..4], [1, 2, 1, 3]);
    let argument = encode(&amendments(2), "tg:", &mut keys);
    assert_eq!(keys.len(), 5);
    assert_eq!(argument[..3], [2, 2, 2]);
}

#[test]
fn a_bucket_travels_with_its_rate_in_lowest_terms() {
    let (count, burst) = (Amount::from_units(100).unwrap(), Amount::from_units(5).unwrap());
    let bucket = Spec::TokenBucket(token_bucket::Spec { count, period_us: 1_000_000, burst });
    let argument = encode(&plan(&[bucket]), "", &mut Vec::new());
    let numbers = [1_000_000, 100, 1, 1_000_000, 5_000_000_u64].map(u64::to_le_bytes).concat();
    assert_eq!(argument[12..], [&[1, 1][..], &numbers].concat());
}

#[test]
fn plans_of_buckets_and_fixed_windows_on_keys_of_their_own_are_plain() {
    let (count, window_us) = (Amount::ONE, 1_000_000);
    let bucket =
        Spec::TokenBucket(token_bucket::Spec { count, period_us: window_us, burst: count });
    let fixed = Spec::FixedWindow(fixed_window::Spec { limit: count, window_us });
    let kind = |ask: &Ask| encode(ask, "", &mut Vec::new())[0];
    assert_eq!(kind(&plan(&[bucket, fixed, bucket])), 0);
    assert_eq!(kind(&plan(&[bucket, TOTAL])), 1);
    assert_eq!(kind(&plan(&[bucket, CEILING])), 1);
    let Ask::Decide(mut shared) = plan(&[bucket, fixed, bucket]) else { panic!("no plan") };
    shared.names[2] = shared.names[0].clone();
    assert_eq!(kind(&Ask::Decide(shared.clone())), 1, "a key twice");
    shared.names.clear();
    assert_eq!(kind(&Ask::Decide(shared)), 1, "keys without names");
}

#[test]
fn every_kind_of_reply_is_read() {
    let ask = plan(&[TOTAL, TOTAL, TOTAL, TOTAL]);
    let levels = [
        packed(0, [0, 0, 9, 8]),
        packed(1, [0, 7, 6, -1]),
        packed(2, [5, 0, 0, 4]),
        packed(2, [-1, 0, 0, -1]),
    ];
    let Ok(Told::Decided(answer)) = decode(&ask, &replied(3, &levels)) else { panic!("no answer") };
    assert_eq!(answer.now, Now { steady_us: 3, unix_us: 3 });
    let reply = |verdict, charged, charged_at_us, micros, reset_us| {
        let available = Amount::from_micros(micros).unwrap();
        Reply { verdict, charged, charged_at_us, reading: Reading { available, reset_us } }
    };
    let denied = |retry_after_us| Verdict::Denied { retry_after_us };
    let expected = [
        reply(Verdict::Allowed, false, 0, 9, Some(8)),
        reply(Verdict::Allowed, true, 7, 6, None),
        reply(denied(Some(5)), false, 0, 0, Some(4)),
        reply(denied(None), false, 0, 0, None),
    ];
    assert_eq!(answer.replies[..], expected);
}

#[test]
fn corrections_are_answered_one_by_one() {
    let reply = replied(3, &[vec![1, 0, 1]]);
    let expected = Told::Amended([true, false, true].into_iter().collect());
    assert_eq!(decode(&amendments(3), &reply), Ok(expected));
}

#[test]
fn an_error_is_one_of_this_ask() {
    let error = decode(&plan(&[TOTAL]), b"\x01WRONGTYPE").unwrap_err();
    assert_eq!(error, StoreError { transient: false, detail: "WRONGTYPE".to_owned() });
}

#[test]
fn a_reply_that_is_too_short_or_too_long_is_an_error() {
    let whole = replied(3, &[packed(1, [0, 7, 6, -1])]);
    let ask = plan(&[TOTAL]);
    assert!(decode(&ask, &whole).is_ok());
    for length in 0..whole.len() {
        assert!(decode(&ask, &whole[..length]).is_err(), "{length}");
    }
    assert!(decode(&ask, &[&whole[..], &[0]].concat()).is_err());
    for wrong in
        [packed(3, [0, 7, 6, -1]), packed(1, [0, -7, 6, 0]), packed(1, [0, 7, i64::MAX, 0])]
    {
        assert!(decode(&ask, &replied(3, &[wrong])).is_err());
    }
}

proptest! {
    #[test]
    fn no_reply_brings_the_reader_down(
        reply in prop::collection::vec(any::<u8>(), 0..120),
        begins_well: bool,
    ) {
        let reply = if begins_well { [&[0][..], &reply].concat() } else { reply };
        let _ = decode(&plan(&[TOTAL, CEILING]), &reply);
        let _ = decode(&amendments(3), &reply);
    }
}
