use std::time::Duration;

use proptest::prelude::*;
use tidegate::Amount;
use tidegate::clock::Now;
use tidegate::engine::Key;
use tidegate::engine::algorithm::{
    Reading, Spec, Verdict, ceiling, fixed_window, token_bucket, total,
};
use tidegate::engine::plan::{Enforcement, Level, Mode};
use tidegate::engine::policy::OnStoreFailure;
use tidegate::engine::store::{Change, Reply, StoreError};

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

fn plan(specs: &[Spec]) -> Command {
    let now = Now { steady_us: 1, unix_us: 2 };
    let levels = specs.iter().map(|spec| level(*spec)).collect();
    let names = specs.iter().enumerate().map(|(index, _)| format!("n{index}").into()).collect();
    Command::Decide(Arc::new(Plan { mode: Mode::Charge, now, holder: 7, levels, names }))
}

fn amendments(count: usize) -> Command {
    let amendment = Amendment {
        level: level(TOTAL),
        name: Some("n".into()),
        charged_at_us: 5,
        holder: 7,
        change: Change::Refund(Amount::ONE),
    };
    Command::Amend(vec![amendment; count].into())
}

/// A reply as the script packs it.
fn packed(code: u8, numbers: [i64; 4]) -> Vec<u8> {
    std::iter::once(code).chain(numbers.into_iter().flat_map(i64::to_le_bytes)).collect()
}

/// An answer in full.
fn full(now_us: i64, levels: &[Vec<u8>]) -> Vec<u8> {
    [&[0][..], &now_us.to_le_bytes(), &levels.concat()].concat()
}

/// The reply to one command with one key that is answered in full.
fn replied(answer: &[u8]) -> Vec<u8> {
    replied_with(1, answer)
}

fn replied_with(keys: usize, answer: &[u8]) -> Vec<u8> {
    let length = u16::try_from(answer.len()).unwrap().to_le_bytes();
    [&3_u64.to_le_bytes()[..], &[3], &vec![0; keys], &length, answer].concat()
}

fn read(commands: &[Command], reply: &[u8]) -> Option<Vec<Result<Response, StoreError>>> {
    let commands: Vec<&Command> = commands.iter().collect();
    decode(&commands, &encode(commands.iter().copied(), "tg:").layout, reply)
}

fn read_one(command: &Command, reply: &[u8]) -> Result<Response, StoreError> {
    let malformed = || StoreError { transient: false, detail: "malformed".to_owned() };
    read(std::slice::from_ref(command), reply).ok_or_else(malformed)?.remove(0)
}

/// So many in an hour.
fn bucket(units: u64) -> Spec {
    let count = Amount::from_units(units).unwrap();
    Spec::TokenBucket(token_bucket::Spec { count, period_us: 3_600_000_000, burst: count })
}

#[test]
fn keys_travel_once_and_are_those_of_levels_that_keep_something() {
    let commands = [plan(&[TOTAL, CEILING, TOTAL]), amendments(2), plan(&[TOTAL])];
    let EncodedBatch { keys, arguments, .. } = encode(&commands, "tg:");
    assert_eq!(keys, [&b"tg:n0"[..], b"tg:n2", b"tg:n"]);
    assert_eq!(arguments[0], [0, 0, 0, 0], "no patterns");
    assert_eq!(arguments[1][..8], [1, 2, 1, 0, 2, 0, 1, 3]);
    assert_eq!(arguments[2][..7], [2, 2, 3, 0, 3, 0, 2]);
    assert_eq!(arguments[3][..6], [1, 1, 1, 0, 1, 1]);
}

#[test]
fn a_bucket_travels_with_its_rate_in_lowest_terms() {
    let (count, burst) = (Amount::from_units(100).unwrap(), Amount::from_units(5).unwrap());
    let bucket = Spec::TokenBucket(token_bucket::Spec { count, period_us: 1_000_000, burst });
    let arguments = encode(&[plan(&[bucket])], "").arguments;
    let numbers = [1_000_000, 100, 1, 1_000_000, 5_000_000_u64].map(u64::to_le_bytes).concat();
    assert_eq!(arguments[1][12..], [&[1, 1][..], &numbers, &[0]].concat());
}

#[test]
fn what_plans_have_in_common_travels_once() {
    let [one, other] = [bucket(1), bucket(2)];
    let commands = [plan(&[one, other]), plan(&[other]), plan(&[TOTAL]), plan(&[one, other])];
    let EncodedBatch { keys, arguments, .. } = encode(&commands, "");
    assert_eq!((keys.len(), arguments.len()), (2, 4));
    assert_eq!(arguments[0], [2, 1, 2, 1, 0, 1]);
    assert!(arguments[1].ends_with(&[1, 2]), "both have the same keys");
    assert!(arguments[2].ends_with(&[0]), "keys of one command are its own");
}

#[test]
fn keys_that_all_commands_of_a_pattern_share_travel_with_it() {
    let of = |user: &str| {
        let Command::Decide(mut one) = plan(&[bucket(1), bucket(2)]) else { panic!("no plan") };
        Arc::make_mut(&mut one).names[0] = user.into();
        Command::Decide(one)
    };
    let EncodedBatch { keys, arguments, layout } = encode(&["a", "b", "a"].map(of), "");
    assert_eq!(keys, [&b"a"[..], b"n1", b"b"]);
    assert_eq!(arguments[0], [1, 1, 1, 1, 3, 1, 1]);
    assert!(arguments[1].ends_with(&[0, 2]));
    let indices: Vec<_> = layout.plain.iter().flatten().map(|indices| indices.to_vec()).collect();
    assert_eq!(indices, [[1, 2], [3, 2], [1, 2]]);
}

#[test]
fn plans_of_buckets_and_fixed_windows_on_keys_of_their_own_are_plain() {
    let fixed = fixed_window::Spec { limit: Amount::ONE, window_us: 1_000_000 };
    let (bucket, fixed) = (bucket(1), Spec::FixedWindow(fixed));
    let is_plain = |command: Command| encode([&command], "").layout.plain[0].is_some();
    assert!(is_plain(plan(&[bucket, fixed, bucket])));
    assert!(!is_plain(plan(&[bucket, TOTAL])));
    assert!(!is_plain(plan(&[bucket, CEILING])));
    let Command::Decide(mut shared) = plan(&[bucket, fixed, bucket]) else { panic!("no plan") };
    let first = shared.names[0].clone();
    Arc::make_mut(&mut shared).names[2] = first;
    assert!(!is_plain(Command::Decide(shared.clone())), "a key twice");
    Arc::make_mut(&mut shared).names.clear();
    assert!(!is_plain(Command::Decide(shared)), "keys without names");
}

#[test]
fn keys_that_a_byte_cannot_name_take_an_argument_of_their_own() {
    let named = |name: usize| {
        let Command::Decide(mut one) = plan(&[bucket(1)]) else { panic!("no plan") };
        Arc::make_mut(&mut one).names[0] = format!("key {name}").into();
        Command::Decide(one)
    };
    let commands: Vec<Command> = (0..300).chain([7, 290]).map(named).collect();
    let EncodedBatch { keys, arguments, layout } = encode(&commands, "");
    assert_eq!((keys.len(), arguments.len()), (300, 2 + 45 + 1));
    assert_eq!(arguments[47][..4], [1, 1, 35, 1], "the 291st key");
    let plain = |at: usize| layout.plain[at].as_ref().map(|indices| indices[0]);
    assert_eq!([254, 255, 300, 301].map(plain), [Some(255), None, Some(8), None]);
}

/// The count in 14 bits, the period in 16 and the units of both in 10: 36 microseconds for a millionth.
const HUNDRED_AN_HOUR: [u8; 5] = [1, 0, 9, 0, 25];

#[test]
fn what_plain_plans_found_is_told_from_what_they_left() {
    let now_us = 1_767_603_612_345_678_u64;
    let value = [
        &[97][..],
        &HUNDRED_AN_HOUR,
        &now_us.to_le_bytes()[..7],
        &[0; 5],
        &(99_500_000 * 36 - 6_u64).to_le_bytes()[..6],
        &[255; 4],
    ];
    let commands = [plan(&[bucket(100)]), plan(&[bucket(100)]), plan(&[bucket(100)])];
    let reply = [&now_us.to_le_bytes()[..], &[1, 5, 2], &value.concat()].concat();
    let told = read(&commands, &reply).unwrap().into_iter();
    let replies = told.map(|told| match told {
        Ok(Response::Decided(answer)) => answer.replies[0],
        other => panic!("{other:?}"),
    });
    let replies: Vec<Reply> = replies.collect();
    let reset_us = |owed: u64| Some(owed * 36 - 6);
    let reading = |owed| Reading {
        available: Amount::from_micros(100_000_000 - owed).unwrap(),
        reset_us: reset_us(owed),
    };
    let charged = |owed| Reply {
        verdict: Verdict::Allowed,
        charged: true,
        charged_at_us: now_us,
        reading: reading(owed),
    };
    assert_eq!(replies[..2], [charged(98_500_000), charged(99_500_000)]);
    let verdict = Verdict::Denied { retry_after: reset_us(500_000).map(Duration::from_micros) };
    let denied = Reply { verdict, charged: false, charged_at_us: 0, reading: reading(99_500_000) };
    assert_eq!(replies[2], denied);
    let wrong = [&now_us.to_le_bytes()[..], &[1, 2, 1], &value.concat()].concat();
    assert!(read(&commands, &wrong).is_none(), "what was refused would have fitted");
}

#[test]
fn what_failed_is_told_apart_from_what_it_charged() {
    let now_us = 1_767_603_612_345_678_u64.to_le_bytes();
    let due = 72_000_000_u64.to_le_bytes();
    let value = [&[65][..], &HUNDRED_AN_HOUR, &now_us[..7], &[0; 5], &due[..6], &[255; 4]].concat();
    let commands = [plan(&[bucket(100)]), plan(&[bucket(100)])];
    let reply = [&now_us[..], &[1, 4, 5], &value, &[4, 0, 1], b"OOM"].concat();
    let told = read(&commands, &reply).unwrap();
    let Ok(Response::Decided(answer)) = &told[0] else { panic!("{told:?}") };
    assert_eq!(answer.replies[0].reading.available.whole(), 99);
    assert_eq!(told[1].as_ref().unwrap_err().detail, "OOM");
}

#[test]
fn every_kind_of_reply_is_read() {
    let command = plan(&[TOTAL, TOTAL, TOTAL, TOTAL]);
    let levels = [
        packed(0, [0, 0, 9, 8]),
        packed(1, [0, 7, 6, -1]),
        packed(2, [5, 0, 0, 4]),
        packed(2, [-1, 0, 0, -1]),
    ];
    let Ok(Response::Decided(answer)) = read_one(&command, &replied_with(4, &full(3, &levels)))
    else {
        panic!("no answer")
    };
    assert_eq!(answer.now, Now { steady_us: 3, unix_us: 3 });
    let reply = |verdict, charged, charged_at_us, micros, reset_us| {
        let available = Amount::from_micros(micros).unwrap();
        Reply { verdict, charged, charged_at_us, reading: Reading { available, reset_us } }
    };
    let denied = |us: Option<u64>| Verdict::Denied { retry_after: us.map(Duration::from_micros) };
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
    let reply = replied(&full(3, &[vec![1, 0, 1]]));
    let expected = Response::AmendmentResults([true, false, true].into_iter().collect());
    assert_eq!(read_one(&amendments(3), &reply), Ok(expected));
}

#[test]
fn an_error_is_one_of_this_ask() {
    let error = read_one(&plan(&[TOTAL]), &replied(b"\x01WRONGTYPE")).unwrap_err();
    assert_eq!(error, StoreError { transient: false, detail: "WRONGTYPE".to_owned() });
}

#[test]
fn a_reply_that_is_too_short_or_too_long_is_an_error() {
    let answer = full(3, &[packed(1, [0, 7, 6, -1])]);
    let (command, whole) = (plan(&[TOTAL]), replied(&answer));
    assert!(read_one(&command, &whole).is_ok());
    for length in 0..whole.len() {
        assert!(read_one(&command, &whole[..length]).is_err(), "{length}");
    }
    for length in 0..answer.len() {
        assert!(read_one(&command, &replied(&answer[..length])).is_err(), "{length}");
    }
    assert!(read_one(&command, &[&whole[..], &[0]].concat()).is_err());
    assert!(read_one(&command, &replied(&[&answer[..], &[0]].concat())).is_err());
    for wrong in
        [packed(3, [0, 7, 6, -1]), packed(1, [0, -7, 6, 0]), packed(1, [0, 7, i64::MAX, 0])]
    {
        assert!(read_one(&command, &replied(&full(3, &[wrong]))).is_err());
    }
}

proptest! {
    #[test]
    fn no_reply_brings_the_reader_down(
        reply in prop::collection::vec(any::<u8>(), 0..120),
        begins_well: bool,
    ) {
        let reply = if begins_well { [&3_u64.to_le_bytes()[..], &reply].concat() } else { reply };
        let _ = read(&[plan(&[TOTAL, CEILING]), amendments(3)], &reply);
        let _ = read(&[plan(&[bucket(100), bucket(5)]), plan(&[bucket(100)])], &reply);
    }
}
