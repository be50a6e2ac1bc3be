//! The published limits as a page: one file, no script, nothing from elsewhere.

use std::fmt::{self, Display, Write as _};

use http::StatusCode;
use sha2::{Digest as _, Sha256};
use tidegate::HeaderStyle;
use tidegate::algorithm::Spec;
use tidegate::policy::{
    Published, PublishedLimit, PublishedOperation, PublishedPattern, Row, Rows,
};

use super::words;

const STYLE: &str = include_str!("page.css");

/// Only this page's own style is let in.
pub(super) fn content_security_policy() -> String {
    let hash = base64(&Sha256::digest(STYLE));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    )
}

/// The page as HTML text.
pub(super) fn render(published: &Published<'_>) -> String {
    let mut html = String::with_capacity(16 * 1024);
    // Writing to a String cannot fail.
    let _ = write_page(&mut html, published);
    html
}

fn write_page(out: &mut String, published: &Published<'_>) -> fmt::Result {
    let name = Escaped(published.policy);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>Rate limits of {name}</title><style>{STYLE}</style></head><body>"
    )?;
    let groups = groups(published);
    header(out, published, &groups)?;
    out.push_str("<main>");
    for (index, group) in groups.iter().enumerate() {
        write_group(out, published, index, group)?;
    }
    if groups.is_empty() {
        out.push_str("<section><h2>No limits</h2><p>This policy publishes none.</p></section>");
    }
    answers(out, published)?;
    out.push_str(
        "</main><footer>Made by Tidegate from the policy in force. It changes when the policy does.\
         </footer></body></html>\n",
    );
    Ok(())
}

/// Limits that stand together.
struct Group<'p> {
    /// `None`: every request.
    operation: Option<&'p PublishedOperation<'p>>,
    limits: Vec<&'p PublishedLimit<'p>>,
}

impl Group<'_> {
    fn title(&self) -> String {
        match self.operation {
            None => "Every request".to_owned(),
            Some(operation) if operation.name == "default" => "Everything else".to_owned(),
            Some(operation) => words::title(operation.name),
        }
    }
}

/// First the operations, then what holds for the rest and for all.
fn groups<'p>(published: &'p Published<'p>) -> Vec<Group<'p>> {
    let is_rest = |operation: &&PublishedOperation<'_>| operation.name == "default";
    let named = published.operations.iter().filter(|operation| !is_rest(operation));
    let operations = named.chain(published.operations.iter().filter(is_rest));
    let of = |operation: &'p PublishedOperation<'p>| {
        let speaks = |limit: &&PublishedLimit<'_>| limit.operations.contains(&operation.name);
        let limits = published.limits.iter().filter(speaks).collect();
        Group { operation: Some(operation), limits }
    };
    let general = published.limits.iter().filter(|limit| limit.operations.is_empty());
    let every = Group { operation: None, limits: general.collect() };
    let groups = operations.map(of).chain([every]);
    groups.filter(|group| !group.limits.is_empty()).collect()
}

fn header(out: &mut String, published: &Published<'_>, groups: &[Group<'_>]) -> fmt::Result {
    write!(
        out,
        "<header><p class=\"eyebrow\">Rate limits</p><h1>{}</h1>\
         <p class=\"lead\">How much you can ask for, how fast it comes back, and how to tell when \
         you are close.</p><p class=\"facts\">",
        Escaped(&words::title(published.policy))
    )?;
    if let Some(version) = published.version {
        write!(out, "<span>Version {}</span>", Escaped(version))?;
    }
    write!(out, "<span>Times in {}</span>", Escaped(published.timezone))?;
    let differs = |limit: &PublishedLimit<'_>| matches!(limit.rows, Rows::ByTier(_));
    if published.limits.iter().any(differs) {
        let tiers = published.tiers.join(", ");
        write!(out, "<span>Tiers: {}</span>", Escaped(&tiers))?;
    }
    out.push_str("</p>");
    if !published.enabled {
        out.push_str("<p class=\"off\">These limits are switched off at present.</p>");
    }
    out.push_str("<nav aria-label=\"Contents\">");
    for (index, group) in groups.iter().enumerate() {
        write!(out, "<a href=\"#g{index}\">{}</a>", Escaped(&group.title()))?;
    }
    out.push_str("<a href=\"#answers\">Reading the answers</a></nav></header>");
    Ok(())
}

fn write_group(
    out: &mut String,
    published: &Published<'_>,
    index: usize,
    group: &Group<'_>,
) -> fmt::Result {
    write!(out, "<section id=\"g{index}\"><h2>{}</h2>", Escaped(&group.title()))?;
    patterns(out, group)?;
    let tiers = tiers_of(published, group);
    let wide = if tiers.is_empty() { "" } else { " class=\"wide\"" };
    write!(out, "<div class=\"scroll\"><table{wide}>")?;
    if !tiers.is_empty() {
        out.push_str("<thead><tr><th scope=\"col\">Limit</th>");
        for tier in &tiers {
            write!(out, "<th scope=\"col\">{}</th>", Escaped(tier))?;
        }
        out.push_str("</tr></thead>");
    }
    out.push_str("<tbody>");
    for limit in &group.limits {
        write_limit(out, published, limit, &tiers)?;
    }
    out.push_str("</tbody></table></div></section>");
    Ok(())
}

fn patterns(out: &mut String, group: &Group<'_>) -> fmt::Result {
    let Some(operation) = group.operation else {
        out.push_str("<p class=\"paths\">Whatever you ask for, besides its own limits.</p>");
        return Ok(());
    };
    out.push_str("<p class=\"paths\">");
    if operation.patterns.is_empty() {
        let rest = "Whatever has no limits of its own above.";
        let named = "Counted by the application itself.";
        out.push_str(if operation.name == "default" { rest } else { named });
    }
    for PublishedPattern { methods, path } in &operation.patterns {
        let methods = if methods.is_empty() { "any method".to_owned() } else { methods.join(" ") };
        write!(out, "<code><b>{}</b> {}</code>", Escaped(&methods), Escaped(path))?;
    }
    out.push_str("</p>");
    Ok(())
}

/// The columns: tiers that some limit of the group treats as different.
fn tiers_of<'p>(published: &Published<'p>, group: &Group<'_>) -> Vec<&'p str> {
    let named = |tier: &&str| {
        group.limits.iter().any(|limit| match &limit.rows {
            Rows::ByTier(rows) => rows.iter().any(|row| row.name == *tier),
            Rows::Everyone(_) | Rows::ByAttribute { .. } => false,
        })
    };
    published.tiers.iter().copied().filter(named).collect()
}

fn write_limit(
    out: &mut String,
    published: &Published<'_>,
    limit: &PublishedLimit<'_>,
    tiers: &[&str],
) -> fmt::Result {
    let title = limit.describe.map_or_else(|| words::title(limit.name), str::to_owned);
    write!(out, "<tr><th scope=\"row\"><span class=\"what\">{}</span>", Escaped(&title))?;
    let mut phrases = vec![words::by(&limit.by), words::refill(limit, published.timezone)];
    phrases.extend(words::notes(limit));
    phrases.extend(words::conditions(&limit.when));
    out.push_str("<span class=\"how\">");
    for phrase in &phrases {
        write!(out, "<span>{}</span>", Escaped(phrase))?;
    }
    write!(out, "</span><code class=\"name\">{}</code></th>", Escaped(limit.name))?;
    let span = tiers.len().max(1);
    match &limit.rows {
        Rows::Everyone(spec) => {
            write!(out, "<td colspan=\"{span}\">")?;
            amount(out, spec.as_ref())?;
            if span > 1 && limit.when.authenticated != Some(false) && limit.when.tiers.is_empty() {
                out.push_str("<span class=\"all\">the same on every tier</span>");
            }
            out.push_str("</td>");
        }
        Rows::ByTier(rows) => by_tier(out, rows, tiers)?,
        Rows::ByAttribute { attribute, rows, default } => {
            write!(out, "<td colspan=\"{span}\"><dl class=\"values\">")?;
            for row in rows {
                let value = format!("{} {}", words::plain(attribute), row.name);
                pair(out, &value, row.spec.as_ref())?;
            }
            let others = format!("any other {}", words::plain(attribute));
            pair(out, &others, default.as_ref())?;
            out.push_str("</dl></td>");
        }
    }
    out.push_str("</tr>");
    Ok(())
}

fn by_tier(out: &mut String, rows: &[Row<'_>], tiers: &[&str]) -> fmt::Result {
    for tier in tiers {
        write!(out, "<td data-tier=\"{}\">", Escaped(tier))?;
        match rows.iter().find(|row| row.name == *tier) {
            Some(row) => amount(out, row.spec.as_ref())?,
            None => out.push_str("<span class=\"none\">does not apply</span>"),
        }
        out.push_str("</td>");
    }
    Ok(())
}

fn pair(out: &mut String, value: &str, spec: Option<&Spec>) -> fmt::Result {
    write!(out, "<div><dt>{}</dt><dd>", Escaped(value))?;
    amount(out, spec)?;
    out.push_str("</dd></div>");
    Ok(())
}

fn amount(out: &mut String, spec: Option<&Spec>) -> fmt::Result {
    let Some(spec) = spec else {
        out.push_str("<span class=\"none\">no limit</span>");
        return Ok(());
    };
    let (number, unit) = (words::number(spec.number()), words::unit(spec));
    write!(
        out,
        "<span class=\"cell\"><span class=\"amount\"><b>{number}</b> {}</span>",
        Escaped(&unit)
    )?;
    if let Some(burst) = words::burst(spec) {
        write!(out, " <span class=\"burst\">{burst}</span>")?;
    }
    out.push_str("</span>");
    Ok(())
}

/// How to read what the API says.
fn answers(out: &mut String, published: &Published<'_>) -> fmt::Result {
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
        ("X-RateLimit-Reset", "When nothing is owed any more, in Unix seconds."),
    ];
    let ietf = [
        ("RateLimit-Policy", "Each limit that applies: its number q, its window w in seconds."),
        ("RateLimit", "The state of each: r remaining, t seconds until more comes back."),
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

/// A refusal by the first limit with a window, as this policy would send it.
fn sample(out: &mut String, published: &Published<'_>) -> fmt::Result {
    let specs = published.limits.iter().filter_map(|limit| {
        let spec = match &limit.rows {
            Rows::Everyone(spec) | Rows::ByAttribute { default: spec, .. } => spec.as_ref(),
            Rows::ByTier(rows) => rows.iter().find_map(|row| row.spec.as_ref()),
        };
        let spec = spec?;
        Some((limit, spec, spec.window_us()?.div_ceil(1_000_000)))
    });
    let mut refusing = specs.filter(|(limit, ..)| limit.exceed != "warn");
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
        let whole = number.whole();
        write!(out, "\nRateLimit-Policy: \"{name}\";q={whole};w={seconds}")?;
        write!(out, "\nRateLimit: \"{name}\";r=0;t=12")?;
    }
    Ok(())
}

/// Text that HTML takes for nothing else.
struct Escaped<'a>(&'a str);

impl Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                _ => f.write_char(letter)?,
            }
        }
        Ok(())
    }
}

/// The alphabet of RFC 4648, padded.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let at = |index: usize| u32::from(chunk.get(index).copied().unwrap_or_default());
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for place in 0..4_usize {
            let letter = (bits >> (18 - 6 * place)) & 63;
            let letter = usize::try_from(letter).map_or(b'=', |letter| LETTERS[letter]);
            text.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use tidegate::Policy;
    use tidegate::clock::{Clock as _, FakeClock};

    use super::*;

    #[test]
    fn whatever_a_policy_says_is_text_on_the_page() {
        let text = "tidegate: 1\nname: p\nversion: \"<i>\"\noperations: { a: GET /<b> }\n\
                    limits: { l: { when: a, by: ip, total: 1, describe: \"<script>'&\\\"\" } }\n";
        let policy = Policy::parse("p.yaml", text).unwrap();
        let html = render(&policy.published(FakeClock::at_unix_seconds(0).now()));
        assert!(html.contains("&lt;script&gt;&#39;&amp;&quot;"), "{html}");
        for raw in ["<script", "<i>", "/<b>"] {
            assert!(!html.contains(raw), "{raw} in {html}");
        }
    }

    #[test]
    fn a_policy_without_limits_or_with_its_limits_off_says_so() {
        let page = |more: &str| {
            let text = format!("tidegate: 1\nname: p\nenabled: false\n{more}");
            let policy = Policy::parse("p.yaml", &text).unwrap();
            render(&policy.published(FakeClock::at_unix_seconds(0).now()))
        };
        let (empty, full) = (page(""), page("limits: { l: { by: ip, total: 1 } }\n"));
        assert!(empty.contains("This policy publishes none") && !full.contains("publishes none"));
        assert!(full.contains("switched off at present"));
    }

    #[test]
    fn base64_pads_what_is_left_over() {
        for (plain, coded) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foob", "Zm9vYg==")] {
            assert_eq!(base64(plain.as_bytes()), coded);
        }
    }
}
