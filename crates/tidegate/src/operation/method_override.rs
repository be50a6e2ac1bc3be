//! Headers in which a client names another method than the one that HTTP says.
//!
//! Where the policy follows them, a request counts as the method that they name. Frameworks disagree on
//! much of it: some follow an override on any method, most on a POST only; some take any word, others a
//! few. What they could read differently is refused, or a client could have one method counted and
//! another one served.

use std::borrow::Cow;

use crate::policy::diagnostics::shown;
use crate::request::{Request, RequestError};

/// The headers that frameworks read another method from, in lower case.
pub const METHOD_OVERRIDES: [&str; 3] =
    ["x-http-method-override", "x-http-method", "x-method-override"];

/// The methods that every framework takes from an override.
const NAMEABLE: [&str; 3] = ["PUT", "PATCH", "DELETE"];

/// The method that a request counts as: the one that its overriding headers name, else its own.
pub(crate) fn overridden_method<'r>(
    request: &'r Request<'_>,
    method: Cow<'r, str>,
) -> Result<Cow<'r, str>, RequestError> {
    let mut named: Option<Cow<'r, str>> = None;
    for header in METHOD_OVERRIDES {
        let refuse = |detail: String| Err(RequestError::new(format!("headers.{header}"), detail));
        let mut lines = request.header_lines(header);
        let Some(line) = lines.next() else { continue };
        let name = in_upper_case(line);
        if lines.next().is_some() || named.as_ref().is_some_and(|named| *named != name) {
            return refuse("names a method beside another one, expected one method".to_owned());
        }
        if name != method && !(method == "POST" && NAMEABLE.contains(&&*name)) {
            let expected = "PUT, PATCH or DELETE, on a POST";
            return refuse(format!(
                "found `{}` on a {}, expected {expected}",
                shown(line),
                shown(&method)
            ));
        }
        named = Some(name);
    }
    Ok(named.unwrap_or(method))
}

/// A method in upper case, as all methods are read.
pub(crate) fn in_upper_case(method: &str) -> Cow<'_, str> {
    let is_odd = method.bytes().any(|byte| byte.is_ascii_lowercase());
    if is_odd { Cow::Owned(method.to_ascii_uppercase()) } else { Cow::Borrowed(method) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(method: &str, headers: &[(&str, &str)]) -> Result<String, String> {
        let mut request = Request::new(method, "/");
        for (name, value) in headers {
            request = request.header(name.to_string(), value.to_string());
        }
        let method = overridden_method(&request, in_upper_case(method));
        method.map(Cow::into_owned).map_err(|error| error.to_string())
    }

    #[test]
    fn a_method_is_read_in_upper_case() {
        for (sent, read) in [("post", "POST"), ("Post", "POST"), ("POST", "POST"), ("x-1", "X-1")] {
            assert_eq!(in_upper_case(sent), read);
        }
    }

    #[test]
    fn the_method_that_a_header_names_is_the_one_that_counts() {
        assert_eq!(counted("POST", &[]), Ok("POST".to_owned()));
        assert_eq!(
            counted("POST", &[("X-HTTP-Method-Override", "delete")]),
            Ok("DELETE".to_owned())
        );
        assert_eq!(counted("post", &[("X-HTTP-Method", " PUT ")]), Ok("PUT".to_owned()));
        let same = [("X-HTTP-Method", "PATCH"), ("x-method-override", "patch")];
        assert_eq!(counted("POST", &same), Ok("PATCH".to_owned()));
        assert_eq!(counted("GET", &[("X-Method-Override", "GET")]), Ok("GET".to_owned()));
    }

    #[test]
    fn what_frameworks_read_differently_is_refused_by_name() {
        let named = |value| [("X-HTTP-Method-Override", value)];
        for value in ["", "FROB", "DELETE, PUT", "PUT\u{e9}", "GET", "TRACE"] {
            let refused = counted("POST", &named(value)).unwrap_err();
            assert!(refused.starts_with("headers.x-http-method-override: found"), "{refused}");
        }
        assert!(counted("GET", &named("POST")).is_err());
        assert!(counted("GET", &named("DELETE")).is_err());
        let twice = [("X-HTTP-Method", "PUT"), ("x-http-method", "PUT")];
        assert!(counted("POST", &twice).unwrap_err().contains("expected one method"));
        let two = [("X-HTTP-Method", "PUT"), ("X-Method-Override", "DELETE")];
        assert!(counted("POST", &two).unwrap_err().contains("expected one method"));
    }
}
