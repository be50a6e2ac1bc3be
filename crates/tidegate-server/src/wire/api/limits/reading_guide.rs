//! The last section of the page: how to read the API's answers.

use std::fmt::{self, Write as _};

use http::StatusCode;
use tidegate::engine::HeaderStyle;
use tidegate::engine::policy::{Published, Rows};

use crate::html::Escaped;

/// Writes headers, a sample refusal, and advice for programs.
pub(super) fn write(out: &mut String, published: &Published<'_>) -> fmt::Result {
    out.push_str(
        "<section id=\"answers\"><h2>Reading the answers</h2><div class=\"columns\"><div>\
         <p>A request counts on every limit that it meets, or on none: <strong>one that is refused \
         costs nothing</strong>. When several limits are short, the answer names the one with the \
         longest wait, by the small name that stands under it here.</p><pre>",
    );
    sample(out, published)?;
    out.push_str("</pre></div><dl class=\"headers\">");
    let x = [
        ("X-RateLimit-Limit", "The number of the limit that you are closest to."),
        ("X-RateLimit-Remaining", "How many more requests like this one would pass now."),
        (
            "X-RateLimit-Reset",
            "When nothing is owed any more, in Unix seconds; absent where no time brings that.",
        ),
    ];
    let ietf = [
        (
            "RateLimit-Policy",
            "Each limit that applies: q at most, w seconds until all of it is back.",
        ),
        ("RateLimit", "The state of each: r remaining, and no more within t seconds."),
    ];
    let refusal = [
        ("Retry-After", "Only on a refusal: wait so many seconds, and the same request passes."),
        ("No Retry-After", "Waiting does not help: ask for less, or use what is left elsewhere."),
    ];
    let (with_x, with_ietf) = styles(published);
    let x = x.iter().filter(|_| with_x);
    for (name, meaning) in refusal.iter().chain(x).chain(ietf.iter().filter(|_| with_ietf)) {
        write!(out, "<div><dt>{name}</dt><dd>{meaning}</dd></div>")?;
    }
    out.push_str(
        "</dl></div><p>Programs should sleep for the seconds in <code>Retry-After</code>, add a \
         little chance so that they do not all return together, and then go on. The same limits for \
         programs are at <a href=\"",
    );
    let query: String = form_urlencoded::byte_serialize(published.policy.as_bytes()).collect();
    write!(out, "v1/limits?policy={}\"><code>/v1/limits</code></a>.</p></section>", Escaped(&query))
}

fn styles(published: &Published<'_>) -> (bool, bool) {
    (published.headers != HeaderStyle::Ietf, published.headers != HeaderStyle::X)
}

/// Writes a sample refusal by the first limit with a window.
fn sample(out: &mut String, published: &Published<'_>) -> fmt::Result {
    let specs = published.limits.iter().filter_map(|limit| {
        let spec = match &limit.rows {
            Rows::Everyone(spec) | Rows::ByAttribute { default: spec, .. } => spec.as_ref(),
            Rows::ByTier(rows) => rows.iter().find_map(|row| row.spec.as_ref()),
        };
        let spec = spec?;
        Some((limit, spec, spec.refill_us()?.div_ceil(1_000_000).max(1)))
    });
    let mut refusing = specs.filter(|(limit, ..)| !matches!(&*limit.exceed, "warn" | "challenge"));
    let Some((limit, spec, seconds)) = refusing.next() else {
        out.push_str("<b>HTTP/1.1 429 Too Many Requests</b>\nRetry-After: 12");
        return Ok(());
    };
    let reason = StatusCode::from_u16(limit.status).ok().and_then(|code| code.canonical_reason());
    let status = format!("{} {}", limit.status, reason.unwrap_or_default());
    write!(out, "<b>HTTP/1.1 {}</b>\nRetry-After: 12", Escaped(status.trim_end()))?;
    let (number, name) = (spec.number(), Escaped(limit.name));
    let (with_x, with_ietf) = styles(published);
    if with_x {
        write!(out, "\nX-RateLimit-Limit: {number}\nX-RateLimit-Remaining: 0")?;
        out.push_str("\nX-RateLimit-Reset: 1767603660");
    }
    if with_ietf {
        let quota = spec.capacity().whole();
        write!(out, "\nRateLimit-Policy: \"{name}\";q={quota};w={seconds}")?;
        write!(out, "\nRateLimit: \"{name}\";r=0;t=12")?;
    }
    Ok(())
}
