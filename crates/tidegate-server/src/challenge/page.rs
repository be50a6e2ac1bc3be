//! The page on which a browser solves its challenge. It loads nothing, except the script of the CAPTCHA
//! service that a policy names.

use std::fmt::{self, Write as _};
use std::sync::LazyLock;

use tidegate::engine::policy::ChallengeKind;

use super::{IssuedChallenge, PATH};
use crate::html::{CARD_STYLE, Escaped, hash_source, write_card_head};
use crate::leases::random_id;

const SCRIPT: &str = include_str!("page.js");

/// Allows this page's own script and style. The script makes the worker.
static OWN_POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; script-src '{}'; style-src '{}'; worker-src blob:; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        hash_source(SCRIPT),
        hash_source(CARD_STYLE)
    )
});

/// A page and its content security policy.
pub(crate) struct Page {
    pub(crate) html: String,
    pub(crate) content_security_policy: String,
}

impl Page {
    /// The page for a challenge. After the solution the script repeats a safe request.
    pub(crate) fn new(issued: &IssuedChallenge, is_safe: bool) -> Self {
        let nonce = format!("{:032x}", random_id());
        let mut html = String::with_capacity(SCRIPT.len() + CARD_STYLE.len() + 4096);
        // Writing to a String cannot fail.
        let _ = write_page(&mut html, issued, is_safe, &nonce);
        let content_security_policy = match &issued.challenge.kind {
            ChallengeKind::ProofOfWork { .. } => OWN_POLICY.clone(),
            ChallengeKind::Captcha { .. } => with_widget(&nonce),
        };
        Self { html, content_security_policy }
    }
}

/// The script of a service loads further scripts, frames and styles from its own places.
fn with_widget(nonce: &str) -> String {
    let script = hash_source(SCRIPT);
    format!(
        "default-src 'none'; script-src '{script}' 'nonce-{nonce}' 'strict-dynamic'; \
         style-src 'unsafe-inline' https:; img-src https: data:; font-src https:; \
         frame-src https:; worker-src blob: https:; connect-src 'self' https:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

fn write_page(
    out: &mut String,
    issued: &IssuedChallenge,
    is_safe: bool,
    nonce: &str,
) -> fmt::Result {
    let (kind, difficulty) = match issued.challenge.kind {
        ChallengeKind::ProofOfWork { difficulty } => ("proof_of_work", difficulty),
        ChallengeKind::Captcha { .. } => ("captcha", 0),
    };
    let (token, safe) = (Escaped(&issued.token), if is_safe { "yes" } else { "no" });
    write_card_head(out, "One moment, please")?;
    write!(
        out,
        "<body><main id=\"challenge\" data-kind=\"{kind}\" data-token=\"{token}\" \
         data-difficulty=\"{difficulty}\" data-post=\"{PATH}\" data-safe=\"{safe}\">\
         <h1>One moment, please</h1>"
    )?;
    match &issued.challenge.kind {
        ChallengeKind::ProofOfWork { .. } => out.push_str(
            "<p>More requests than usual come from your connection. Before this site answers the \
             next one, it asks your browser to solve a small puzzle.</p>\
             <p class=\"soft\">That takes a few seconds, a little longer on a phone, and you need \
             not do anything.</p>\
             <progress id=\"bar\" max=\"100\" value=\"0\" aria-label=\"How far the puzzle is\">\
             </progress><p id=\"say\" role=\"status\">Solving…</p>",
        ),
        ChallengeKind::Captcha { site_key, script_url, .. } => {
            write_widget(out, site_key.as_deref(), script_url.as_deref(), nonce)?;
        }
    }
    writeln!(
        out,
        "<button id=\"again\" type=\"button\" hidden>Try again</button>\
         <noscript><p role=\"alert\">This check needs JavaScript, which is switched off in your \
         browser. Switch it on for this site and load the page again, or come back later.</p>\
         </noscript><footer><p>Once it is solved, a cookie that says so, and nothing else, lets \
         you through for {}.</p></footer></main>\
         <script>{SCRIPT}</script></body></html>",
        Span(issued.challenge.pass.as_secs())
    )
}

fn write_widget(
    out: &mut String,
    site_key: Option<&str>,
    script_url: Option<&str>,
    nonce: &str,
) -> fmt::Result {
    let (Some(site_key), Some(script_url)) = (site_key, script_url) else {
        out.push_str(
            "<progress id=\"bar\" hidden></progress><p id=\"say\" role=\"status\">It cannot be \
             shown here. Use this site's own app, or come back later.</p>",
        );
        return Ok(());
    };
    // Each service looks for its own class, and reads the same two attributes.
    write!(
        out,
        "<p>More requests than usual come from your connection. Before this site answers the next \
         one, please show that you are a person.</p>\
         <div class=\"widget cf-turnstile h-captcha g-recaptcha\" data-sitekey=\"{}\" \
         data-callback=\"tidegateSolved\"></div><progress id=\"bar\" hidden max=\"100\"></progress>\
         <p id=\"say\" role=\"status\"></p><script src=\"{}\" nonce=\"{nonce}\" async defer></script>",
        Escaped(site_key),
        Escaped(script_url)
    )
}

/// A duration in words.
struct Span(u64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = match self.0 {
            seconds if seconds >= 3_600 && seconds % 3_600 == 0 => (seconds / 3_600, "hour"),
            seconds if seconds >= 60 => (seconds / 60, "minute"),
            seconds => (seconds, "second"),
        };
        match (number, unit) {
            (1, "hour") => f.write_str("an hour"),
            (1, unit) => write!(f, "a {unit}"),
            (number, unit) => write!(f, "{number} {unit}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate::engine::policy::{Challenge, Secret};

    use std::time::Duration;

    use super::*;

    fn issue(kind: ChallengeKind) -> IssuedChallenge {
        let challenge = Challenge { kind, pass: Duration::from_secs(3_600) };
        IssuedChallenge { token: "c1.t\"<".to_owned(), challenge, lasts: Duration::from_secs(600) }
    }

    fn captcha(site_key: Option<&str>) -> IssuedChallenge {
        let (verify_url, secret) = ("https://v.test/".to_owned(), Secret::new("hush".to_owned()));
        let script_url = Some("https://widget.test/api.js".to_owned());
        let site_key = site_key.map(str::to_owned);
        issue(ChallengeKind::Captcha { verify_url, secret, site_key, script_url })
    }

    #[test]
    fn the_page_has_all_that_its_script_looks_for_and_loads_nothing_from_elsewhere() {
        let page = Page::new(&issue(ChallengeKind::ProofOfWork { difficulty: 18 }), true);
        let html = page.html.split("<script>").next().unwrap();
        for part in ["id=\"challenge\"", "id=\"bar\"", "id=\"say\"", "id=\"again\"", "<noscript>"] {
            assert!(html.contains(part), "{part}");
        }
        assert!(html.contains("data-token=\"c1.t&quot;&lt;\""), "{html}");
        assert!(html.contains("for an hour.") && html.contains("data-safe=\"yes\""), "{html}");
        assert!(!html.contains("src=") && !html.contains("href="), "{html}");
        assert!(!page.content_security_policy.contains("unsafe"));
        assert!(!page.content_security_policy.contains("http"));
    }

    #[test]
    fn the_page_of_a_service_names_its_script_by_a_nonce_and_never_the_secret() {
        let page = Page::new(&captcha(Some("site\"key")), false);
        let nonce = page.html.split("nonce=\"").nth(1).unwrap().split('"').next().unwrap();
        assert!(page.content_security_policy.contains(&format!("'nonce-{nonce}'")));
        assert!(page.html.contains("data-sitekey=\"site&quot;key\""));
        assert!(!page.html.contains("hush"));
        let other = Page::new(&captcha(Some("site\"key")), false);
        assert!(!other.html.contains(nonce), "a nonce is used once");
    }

    #[test]
    fn without_a_widget_the_page_says_so() {
        assert!(Page::new(&captcha(None), true).html.contains("cannot be shown here"));
    }

    #[test]
    fn spans_are_said_as_people_do() {
        let said = [3_600, 7_200, 5_400, 60, 90, 1, 45].map(|seconds| Span(seconds).to_string());
        let expected =
            ["an hour", "2 hours", "90 minutes", "a minute", "a minute", "a second", "45 seconds"];
        assert_eq!(said, expected);
    }
}
