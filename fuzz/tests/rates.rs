//! Amounts, durations and specs: exact both ways, within their bounds.

#![allow(clippy::unwrap_used, reason = "a target that cannot be set up must fail")]

use bolero::check;
use tidegate::engine::policy::Options;
use tidegate::engine::units::{
    Amount, DURATION_US_MAX, duration_in_words, parse_duration, parse_exact_duration, parse_period,
    per_duration, short_duration,
};
use tidegate::{Limiter, Policy, Request};
use tidegate_fuzz::{Choices, bytes, corpus};

const WORDS: [&str; 38] = [
    "0",
    "1",
    "5",
    "9",
    "10",
    "60",
    "999",
    "4000000000",
    "4000000001",
    "18446744073709551616",
    "000001",
    "0000001",
    "_",
    ".",
    "-",
    "+",
    "e3",
    "k",
    "m",
    "x",
    "ms",
    "s",
    "min",
    "h",
    "day",
    "d",
    "week",
    "month",
    "/",
    " burst ",
    " ",
    "unlimited",
    "1000d",
    "86400000",
    "٣",
    "µs",
    "1k",
    "2.5x",
];

const ALGORITHMS: [&str; 8] = [
    "token_bucket",
    "sliding_window",
    "sliding_counter",
    "fixed_window",
    "quota",
    "concurrency",
    "total",
    "ceiling",
];

#[test]
fn the_corpus_holds() {
    for line in corpus("rates").iter().flat_map(|text| text.lines()) {
        units_hold(line);
        ALGORITHMS.iter().for_each(|algorithm| spec_holds(algorithm, line));
    }
}

#[test]
fn arbitrary_units() {
    check!().with_iterations(20_000).with_generator(bytes(64)).for_each(|bytes: &Vec<u8>| {
        units_hold(&Choices::new(bytes).text(&WORDS, 6));
        units_hold(&String::from_utf8_lossy(bytes));
    });
}

#[test]
fn arbitrary_specs() {
    check!().with_iterations(3_000).with_generator(bytes(64)).for_each(|bytes: &Vec<u8>| {
        let mut choices = Choices::new(bytes);
        let algorithm = choices.word(&ALGORITHMS);
        let spec = if choices.flag() { likely(&mut choices) } else { choices.text(&WORDS, 8) };
        spec_holds(algorithm, &spec);
    });
}

/// A text of the right shape.
fn likely(choices: &mut Choices<'_>) -> String {
    let (count, period) = (choices.number(), choices.number());
    let unit = choices.word(&["ms", "s", "min", "h", "day", "week", "month"]);
    match choices.byte() % 6 {
        0 => count.to_string(),
        1 => format!("{count}/{unit}"),
        2 => format!("{count}/{period}{unit}"),
        3 => format!("{count}/{unit} burst {period}"),
        4 => format!("{count}/{unit} burst {}.{period}x", choices.byte()),
        _ => format!("{count}.{period}"),
    }
}

fn units_hold(text: &str) {
    if let Ok(amount) = Amount::parse(text) {
        assert!(amount <= Amount::MAX);
        assert_eq!(Amount::parse(&amount.to_string()), Ok(amount), "{text}");
    }
    if let Ok(count) = Amount::parse_count(text) {
        assert!(count >= Amount::ONE && count <= Amount::MAX, "{text}");
        assert_eq!(count.micros() % Amount::ONE.micros(), 0, "{text}");
        assert_eq!(Amount::parse_count(&count.to_string()), Ok(count), "{text}");
    }
    let duration = parse_duration(text);
    if let Ok(us) = duration {
        assert!(us <= DURATION_US_MAX, "{text}");
        assert_eq!(parse_exact_duration(text).ok(), in_range(text, us), "{text}");
    }
    if let Ok(us) = parse_exact_duration(text) {
        assert!(us <= DURATION_US_MAX, "{text}");
        spoken(us);
    }
    if let Ok(us) = parse_period(text) {
        assert!((1..=DURATION_US_MAX).contains(&us), "{text}");
        assert_eq!(parse_duration(&format!("{}ms", us / 1_000)), Ok(us), "{text}");
        spoken(us);
    }
}

/// The exact duration of a whole one: there the number before the unit is an amount.
fn in_range(text: &str, us: u64) -> Option<u64> {
    let number = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    Amount::parse(number).ok().map(|_| us)
}

/// A displayed duration can be parsed again, where a policy could write it.
fn spoken(us: u64) {
    let short = short_duration(us);
    if let (Some(minutes), true) = (short.strip_suffix('m'), us > 0) {
        assert_eq!(parse_duration(&format!("{minutes}min")), Ok(us));
    } else if !short.ends_with("us") {
        assert_eq!(parse_duration(&short), Ok(us));
    }
    assert!(!duration_in_words(us).is_empty() && !per_duration(us).is_empty());
}

/// Every parsed spec can decide, up to the largest costs.
fn spec_holds(algorithm: &str, text: &str) {
    let quoted = text.replace('\'', "''").replace(char::is_control, "");
    let value = if algorithm == "ceiling" { ", value: v" } else { "" };
    let policy = format!(
        "tidegate: 1\nname: p\nidentity: {{attributes: {{v: given}}}}\n\
         limits:\n  a: {{by: ip, {algorithm}: '{quoted}'{value}}}\n"
    );
    let Ok(checked) = Policy::check("p.yaml", &policy, &Options::default()) else { return };
    let limiter = Limiter::new(checked.policy);
    for cost in [Amount::ZERO, Amount::ONE, Amount::MAX] {
        let request = Request::new("GET", "/").ip([192, 0, 2, 1].into());
        let request = request.cost(cost).attribute("v", cost.to_string());
        limiter.check(&request).unwrap();
        limiter.explain(&request).unwrap();
    }
}
