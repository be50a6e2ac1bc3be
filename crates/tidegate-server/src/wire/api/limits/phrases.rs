//! Limits in plain words.

use tidegate::engine::algorithm::calendar::Unit;
use tidegate::engine::algorithm::{Spec, Window};
use tidegate::engine::policy::{Conditions, PublishedCost, PublishedLimit, Row, Rows};
use tidegate::engine::units::{Amount, duration_in_words, parse_duration};

/// A number with its thousands apart: `10,000`.
pub(super) fn number(amount: Amount) -> String {
    let text = amount.to_string();
    let (whole, places) = text.split_once('.').map_or((&*text, None), |(w, p)| (w, Some(p)));
    let mut spaced = String::with_capacity(text.len() + text.len() / 3);
    for (index, digit) in whole.chars().enumerate() {
        if index > 0 && (whole.len() - index).is_multiple_of(3) {
            spaced.push(',');
        }
        spaced.push(digit);
    }
    if let Some(places) = places {
        spaced.push('.');
        spaced.push_str(places);
    }
    spaced
}

/// The unit of a spec: `per minute`, `at once`.
pub(super) fn unit(spec: &Spec) -> String {
    match (spec, spec.window()) {
        (_, Some(window)) => format!("per {}", window.per()),
        (Spec::Concurrency(_), None) => "at once".to_owned(),
        (Spec::Ceiling(_), None) => "at most".to_owned(),
        (_, None) => "in all".to_owned(),
    }
}

/// The burst of a bucket, if it differs from the rate.
pub(super) fn burst(spec: &Spec) -> Option<String> {
    match spec {
        Spec::TokenBucket(bucket) if bucket.burst != bucket.count => {
            Some(format!("bursts up to {}", number(bucket.burst)))
        }
        _ => None,
    }
}

/// A name for reading: `booking.create` is `Booking create`.
pub(super) fn title(name: &str) -> String {
    let spaced = name.replace(['.', '_', '-'], " ");
    let mut letters = spaced.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The parts of a limit's key: `per user`.
pub(super) fn by(parts: &[String]) -> String {
    let part = |part: &String| match part.as_str() {
        "ip" => "address".to_owned(),
        "client" => "user, or address if signed out".to_owned(),
        other => match other.strip_prefix("header.") {
            Some(header) => format!("value of the header {header}"),
            None => other.replace('_', " "),
        },
    };
    let parts: Vec<String> = parts.iter().filter(|part| *part != "global").map(part).collect();
    if parts.is_empty() {
        return "everyone together".to_owned();
    }
    format!("per {}", parts.join(" and "))
}

/// When the limit's budget comes back.
pub(super) fn refill(limit: &PublishedLimit<'_>, timezone: &str) -> String {
    let Some(spec) = first_spec(&limit.rows) else { return "no limit".to_owned() };
    match (spec, spec.window()) {
        (Spec::TokenBucket(_), _) => "refills evenly".to_owned(),
        (Spec::SlidingWindow(_), Some(window)) => format!("counts the last {}", window.per()),
        (Spec::SlidingCounter(_), Some(window)) => {
            format!("counts about the last {}", window.per())
        }
        (_, Some(Window::Calendar(unit))) => midnight(unit, timezone),
        (_, Some(window)) => format!("starts afresh every {}", window.per()),
        (Spec::Concurrency(_), None) => "free again as soon as one ends".to_owned(),
        (Spec::Ceiling(_), None) => "each request by itself".to_owned(),
        (_, None) => "never resets by itself".to_owned(),
    }
}

fn midnight(unit: Unit, timezone: &str) -> String {
    match unit {
        Unit::Day => format!("resets at midnight {timezone}"),
        Unit::Week => format!("resets on Mondays at midnight {timezone}"),
        Unit::Month => format!("resets on the first of the month at midnight {timezone}"),
    }
}

fn first_spec<'p>(rows: &'p Rows<'p>) -> Option<&'p Spec> {
    let first = |rows: &'p [Row<'p>]| rows.iter().find_map(|row| row.spec.as_ref());
    match rows {
        Rows::Everyone(spec) => spec.as_ref(),
        Rows::ByTier(rows) => first(rows),
        Rows::ByAttribute { rows, default, .. } => first(rows).or(default.as_ref()),
    }
}

/// Further facts about a limit, one phrase each.
pub(super) fn notes(limit: &PublishedLimit<'_>) -> Vec<String> {
    let mut notes = Vec::new();
    match limit.cost {
        PublishedCost::Attribute(name) => notes.push(format!("adds up {}", plain(name))),
        PublishedCost::Fixed(cost) if cost != Amount::ONE => {
            notes.push(format!("each request counts {}", number(cost)));
        }
        PublishedCost::Requested | PublishedCost::Fixed(_) => {}
    }
    notes.extend(limit.value.map(|name| format!("looks at {}", plain(name))));
    match limit.counts {
        "failures" => notes.push("only what fails counts".to_owned()),
        "successes" => notes.push("only what succeeds counts".to_owned()),
        _ => {}
    }
    if limit.exceed == "warn" {
        notes.push("beyond it, requests pass with a warning".to_owned());
    } else if limit.exceed == "challenge" {
        notes.push("beyond it, clients must solve a challenge".to_owned());
    } else if let Some(us) =
        limit.exceed.strip_prefix("wait ").and_then(|wait| parse_duration(wait).ok())
    {
        notes.push(format!("beyond it, requests first wait up to {}", duration_in_words(us)));
    }
    if limit.status != 429 {
        notes.push(format!("refused with {}", limit.status));
    }
    notes
}

/// An attribute's name for reading.
pub(super) fn plain(name: &str) -> String {
    name.replace('_', " ")
}

/// The conditions, one phrase each.
pub(super) fn conditions(when: &Conditions<'_>) -> Vec<String> {
    let mut phrases = facts(when).collect::<Vec<_>>();
    phrases.iter_mut().for_each(|phrase| phrase.push_str(" only"));
    if let Some(not) = &when.not {
        let mut excluded: Vec<String> = facts(not).collect();
        if not.not.is_some() {
            excluded.push("some of these".to_owned());
        }
        phrases.push(format!("not {}", excluded.join(" with ")));
    }
    phrases
}

fn facts(when: &Conditions<'_>) -> impl Iterator<Item = String> {
    let list = |what: &str, items: &[&str]| {
        (!items.is_empty()).then(|| format!("{what}{}", items.join(", ")))
    };
    let paths: Vec<&str> = when.paths.iter().map(String::as_str).collect();
    let mut facts = vec![
        list("", &when.operations),
        list("tier ", &when.tiers),
        list("", &when.methods),
        list("", &paths),
        when.addresses.then(|| "certain addresses".to_owned()),
        list("from ", &when.countries),
        when.authenticated
            .map(|yes| if yes { "signed-in users" } else { "signed-out visitors" }.to_owned()),
        when.internal
            .map(|yes| if yes { "our own services" } else { "outside callers" }.to_owned()),
    ];
    facts.extend(when.attributes.iter().map(|(name, values)| {
        let values =
            if values.is_empty() { "of certain values".to_owned() } else { values.join(", ") };
        Some(format!("{} {values}", plain(name)))
    }));
    facts.into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use tidegate::Policy;
    use tidegate::clock::{Clock as _, FakeClock};

    use super::*;

    /// The words of a policy's only limit, written in one line.
    fn describe(limit: &str) -> String {
        let text = format!(
            "tidegate: 1\nname: p\ntimezone: Europe/Berlin\nidentity: {{ attributes: {{ usd: given }} }}\n\
             limits: {{ it: {{ {limit} }} }}\n"
        );
        let policy = Policy::parse("p.yaml", &text).unwrap();
        let published = policy.published(FakeClock::at_unix_seconds(0).now());
        let limit = &published.limits[0];
        let amount = first_spec(&limit.rows).map(|spec| {
            let burst = burst(spec).map(|burst| format!(", {burst}"));
            format!("{} {}{}", number(spec.number()), unit(spec), burst.unwrap_or_default())
        });
        let mut words = vec![amount.unwrap_or_default(), by(&limit.by)];
        words.push(refill(limit, published.timezone));
        words.extend(notes(limit));
        words.extend(conditions(&limit.when));
        words.join("; ")
    }

    #[test]
    fn every_algorithm_is_told_in_words() {
        for (limit, words) in [
            (
                "by: client, token_bucket: 10/s burst 2x",
                "10 per second, bursts up to 20; per user, or address if signed out; refills evenly",
            ),
            (
                "by: ip, sliding_window: 5/5min",
                "5 per 5 minutes; per address; counts the last 5 minutes",
            ),
            (
                "by: global, sliding_counter: 1m/h",
                "1,000,000 per hour; everyone together; counts about the last hour",
            ),
            ("by: user, fixed_window: 1/min", "1 per minute; per user; starts afresh every minute"),
            (
                "by: user, quota: 10_000/month, cost: usd",
                "10,000 per month; per user; resets on the first of the month at midnight Europe/Berlin; adds up usd",
            ),
            (
                "by: [ip, usd], concurrency: 3",
                "3 at once; per address and usd; free again as soon as one ends",
            ),
            (
                "by: user, total: 10, counts: successes",
                "10 in all; per user; never resets by itself; only what succeeds counts",
            ),
            (
                "by: user, value: usd, ceiling: 99.5",
                "99.5 at most; per user; each request by itself; looks at usd",
            ),
        ] {
            assert_eq!(describe(limit), words);
        }
    }

    #[test]
    fn conditions_and_what_happens_beyond_are_told_in_words() {
        let limit = "by: ip, fixed_window: 1/min, exceed: wait 2s, status: 503, \
                     when: { path: [/a, /b/**], authenticated: true, not: { method: PUT } }";
        assert_eq!(
            describe(limit),
            "1 per minute; per address; starts afresh every minute; beyond it, requests first wait up to \
             2 seconds; refused with 503; /a, /b/** only; signed-in users only; not PUT"
        );
        assert_eq!(
            describe("by: ip, fixed_window: 1/min, exceed: challenge"),
            "1 per minute; per address; starts afresh every minute; beyond it, clients must solve a challenge"
        );
    }

    #[test]
    fn names_read_as_words() {
        assert_eq!(title("booking.create"), "Booking create");
        assert_eq!(title("ws-market_data"), "Ws market data");
        assert_eq!(title(""), "");
    }
}
