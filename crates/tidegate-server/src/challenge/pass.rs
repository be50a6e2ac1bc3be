//! Passes: a cookie or a header of the client, which no upstream sees.

use std::borrow::Cow;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName, HeaderValue};

/// The header of a pass.
const HEADER: HeaderName = HeaderName::from_static("tidegate-pass");
/// The cookie of a pass. Its name is case-sensitive.
const COOKIE: &str = "Tidegate-Pass";
/// Further passes of a request are ignored.
const PRESENTED_MAX: usize = 4;

/// A pass for one client.
#[derive(Debug)]
pub(crate) struct Pass {
    pub(crate) token: String,
    pub(crate) lasts: Duration,
}

impl Pass {
    /// The value of `Set-Cookie`.
    pub(crate) fn cookie(&self, secure: bool) -> String {
        let (pass, seconds) = (&self.token, self.lasts.as_secs());
        let secure = if secure { "; Secure" } else { "" };
        format!("{COOKIE}={pass}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Lax{secure}")
    }

    /// The pass, as programs read it.
    pub(crate) fn json(&self, secure: bool) -> String {
        let (pass, ms, cookie) = (&self.token, self.lasts.as_millis(), self.cookie(secure));
        // None of the values holds a character that JSON escapes.
        format!("{{\"pass\":\"{pass}\",\"expires_in_ms\":{ms},\"cookie\":\"{cookie}\"}}")
    }
}

/// Removes the passes from a request, so that they are not forwarded.
pub(crate) fn take_passes(headers: &mut HeaderMap) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(pass) = headers.remove(HEADER) {
        found.extend(pass.to_str().ok().map(str::to_owned));
    }
    let cookies = headers.get(header::COOKIE).map(HeaderValue::as_bytes);
    let cookies = cookies.filter(|line| memchr::memmem::find(line, COOKIE.as_bytes()).is_some());
    if let Some(line) = cookies.map(<[u8]>::to_vec) {
        let rest = without_pass(&line, &mut found);
        match HeaderValue::from_bytes(&rest) {
            Ok(rest) if !rest.is_empty() => drop(headers.insert(header::COOKIE, rest)),
            _ => drop(headers.remove(header::COOKIE)),
        }
    }
    found.truncate(PRESENTED_MAX);
    found
}

/// The passes among the headers of a call to the API.
pub(crate) fn passes_in<'h>(
    headers: &'h [(Cow<'_, str>, Cow<'_, str>)],
) -> impl Iterator<Item = &'h str> {
    let passes = headers.iter().flat_map(|(name, value)| {
        let is_header = name.eq_ignore_ascii_case(HEADER.as_str());
        let cookies = if name.eq_ignore_ascii_case("cookie") { value } else { "" };
        let in_cookies = cookies
            .split(';')
            .filter_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='));
        is_header.then_some(value.trim()).into_iter().chain(in_cookies)
    });
    passes.take(PRESENTED_MAX)
}

/// A line of cookies without passes, which are added to `found`.
fn without_pass(line: &[u8], found: &mut Vec<String>) -> Vec<u8> {
    let mut rest = Vec::with_capacity(line.len());
    for pair in line.split(|byte| *byte == b';').map(<[u8]>::trim_ascii) {
        let pass = pair.strip_prefix(COOKIE.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        if let Some(pass) = pass {
            found.extend(str::from_utf8(pass).ok().map(str::to_owned));
            continue;
        }
        if !rest.is_empty() {
            rest.extend_from_slice(b"; ");
        }
        rest.extend_from_slice(pair);
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(HeaderName, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn passes_are_taken_out_of_header_and_cookies_and_the_rest_goes_on() {
        for (cookies, passes, rest) in [
            ("Tidegate-Pass=p1.a", &["p1.a"][..], None),
            ("a=1; Tidegate-Pass=p1.a; b=2", &["p1.a"], Some("a=1; b=2")),
            ("Tidegate-Pass=x; Tidegate-Pass=y;", &["x", "y"], None),
            ("XTidegate-Pass=1;b=Tidegate-Pass", &[], Some("XTidegate-Pass=1; b=Tidegate-Pass")),
            ("tidegate-pass=1", &[], Some("tidegate-pass=1")),
        ] {
            let mut headers = headers(&[(header::COOKIE, cookies)]);
            assert_eq!(take_passes(&mut headers), passes, "{cookies}");
            let left = headers.get(header::COOKIE).map(|line| line.to_str().unwrap());
            assert_eq!(left, rest, "{cookies}");
            let lines = [(Cow::from("Cookie"), Cow::from(cookies))];
            assert_eq!(passes_in(&lines).collect::<Vec<_>>(), passes, "{cookies}");
        }
        let mut headers = headers(&[(HEADER, "p1.b"), (header::COOKIE, "a=1")]);
        assert_eq!(take_passes(&mut headers), ["p1.b"]);
        assert_eq!(headers.len(), 1);
        let lines = [(Cow::from("TIDEGATE-pass"), Cow::from(" p1.b "))];
        assert_eq!(passes_in(&lines).collect::<Vec<_>>(), ["p1.b"]);
    }

    #[test]
    fn nobody_makes_us_look_at_more_than_a_few() {
        let cookies = "Tidegate-Pass=x;".repeat(1_000);
        let line = HeaderValue::try_from(&cookies).unwrap();
        let mut headers: HeaderMap = [(header::COOKIE, line)].into_iter().collect();
        assert_eq!(take_passes(&mut headers).len(), PRESENTED_MAX);
        assert!(headers.is_empty());
        assert_eq!(passes_in(&[("cookie".into(), cookies.into())]).count(), PRESENTED_MAX);
    }

    #[test]
    fn a_cookie_is_out_of_reach_of_scripts_and_of_plain_connections_where_there_are_others() {
        let granted = Pass { token: "p1.x".to_owned(), lasts: Duration::from_secs(3_600) };
        let plain = "Tidegate-Pass=p1.x; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax";
        assert_eq!(granted.cookie(false), plain);
        assert_eq!(granted.cookie(true), format!("{plain}; Secure"));
        let told: serde_json::Value = serde_json::from_str(&granted.json(false)).unwrap();
        assert_eq!(told["cookie"], plain);
        assert_eq!(told["expires_in_ms"], 3_600_000);
    }
}
