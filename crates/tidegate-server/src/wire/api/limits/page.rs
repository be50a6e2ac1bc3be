//! The published limits as an HTML page: one file without scripts and without foreign resources.

use std::fmt::{self, Write as _};

use data_encoding::BASE64;
use sha2::{Digest as _, Sha256};
use tidegate::engine::algorithm::Spec;
use tidegate::engine::policy::{
    Published, PublishedLimit, PublishedOperation, PublishedPattern, Row, Rows,
};

use super::{phrases, reading_guide};
use crate::html::Escaped;

const STYLE: &str = include_str!("page.css");

/// Allows this page's own style and nothing else.
pub(super) fn content_security_policy() -> String {
    let hash = BASE64.encode(&Sha256::digest(STYLE));
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
    reading_guide::write(out, published)?;
    out.push_str(
        "</main><footer>Made by Tidegate from the policy in force. It changes when the policy does.\
         </footer></body></html>\n",
    );
    Ok(())
}

/// The limits of one operation.
struct Group<'p> {
    /// `None` for the limits of every request.
    operation: Option<&'p PublishedOperation<'p>>,
    limits: Vec<&'p PublishedLimit<'p>>,
}

impl Group<'_> {
    fn title(&self) -> String {
        match self.operation {
            None => "Every request".to_owned(),
            Some(operation) if operation.name == "default" => "Everything else".to_owned(),
            Some(operation) => phrases::title(operation.name),
        }
    }
}

/// The named operations first, then the default operation, then every request.
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
        Escaped(&phrases::title(published.policy))
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
        let named = "KeyUsage by the application itself.";
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
    let title = limit.describe.map_or_else(|| phrases::title(limit.name), str::to_owned);
    write!(out, "<tr><th scope=\"row\"><span class=\"what\">{}</span>", Escaped(&title))?;
    let mut phrases = vec![phrases::by(&limit.by), phrases::refill(limit, published.timezone)];
    phrases.extend(phrases::notes(limit));
    phrases.extend(phrases::conditions(&limit.when));
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
                let value = format!("{} {}", phrases::plain(attribute), row.name);
                pair(out, &value, row.spec.as_ref())?;
            }
            let others = format!("any other {}", phrases::plain(attribute));
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
    let (number, unit) = (phrases::number(spec.number()), phrases::unit(spec));
    write!(
        out,
        "<span class=\"cell\"><span class=\"amount\"><b>{number}</b> {}</span>",
        Escaped(&unit)
    )?;
    if let Some(burst) = phrases::burst(spec) {
        write!(out, " <span class=\"burst\">{burst}</span>")?;
    }
    out.push_str("</span>");
    Ok(())
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
}
