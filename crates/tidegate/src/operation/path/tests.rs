use super::*;
use proptest::prelude::*;

fn normal(raw: &str) -> String {
    NormalPath::parse(raw).unwrap().as_str().to_owned()
}

#[test]
fn every_spelling_of_a_path_has_one_form() {
    let plain = "/admin /admin/ //admin /./admin /admin/. /x/../admin /../admin /%2e%2E/admin";
    let odd = "/..;/admin /admin;a=1 /;x/admin /x;a/..;b/admin /%61dmin /admin?x=/y /admin#/y";
    for raw in plain.split(' ').chain(odd.split(' ')).chain(["/admin?\\%zz"]) {
        assert_eq!(normal(raw), "/admin", "{raw}");
    }
    for raw in ["/", "//", "/..", "/a/..", "/a/../..", "/;x", "/?", "/%2e"] {
        assert_eq!(normal(raw), "/", "{raw}");
    }
}

#[test]
fn escapes_are_decoded_exactly_once() {
    assert_eq!(normal("/%252e%252e/a"), "/%2e%2e/a");
    assert_eq!(normal("/a%3Bb%3Fc%23d%20e"), "/a;b?c#d e");
    assert_eq!(normal("/caf%C3%A9"), "/café");
    assert_eq!(normal("*"), "/*");
}

#[test]
fn segments_leave_the_slashes_out() {
    let segments =
        |raw| NormalPath::parse(raw).unwrap().segments().map(String::from).collect::<Vec<_>>();
    assert_eq!(segments("/a/b c/"), ["a", "b c"]);
    assert_eq!(segments("/"), [""; 0]);
    assert_eq!(segments("*"), ["*"]);
}

#[test]
fn what_servers_read_differently_is_refused_by_name() {
    let error = |raw: &str| NormalPath::parse(raw).unwrap_err();
    let separator = |found: &str| ParseError::new(found, NO_SEPARATOR);
    let escape = |found: &str| ParseError::new(found, "two hexadecimal digits behind each `%`");
    assert_eq!(error("/a%2Fb"), separator("%2F"));
    assert_eq!(error("/a%2fb"), separator("%2f"));
    assert_eq!(error("/a;%2f..%2fb"), separator("%2f"));
    assert_eq!(error("/a%5cb"), separator("%5c"));
    assert_eq!(error("/a\\b"), separator("a\\b"));
    assert_eq!(error("/a\0b"), separator("a\0b"));
    assert_eq!(error("/a%00b"), separator("%00"));
    for control in ["%0a", "%0D", "%09", "%1f", "%7f"] {
        assert_eq!(error(&format!("/login{control}")), separator(control));
        assert_eq!(error(&format!("/login;{control}/x")), separator(control));
    }
    for raw in ["/login\n", "/login\u{7f}", "/login\u{85}", "/login%c2%85"] {
        assert_eq!(error(raw), separator(&raw[1..]), "{raw:?}");
    }
    assert_eq!(error("/a%"), escape("%"));
    assert_eq!(error("/a%2"), escape("%2"));
    assert_eq!(error("/a%/b"), escape("%"));
    assert_eq!(error("/a%+1"), escape("%+1"));
    assert_eq!(error("/a%éé"), escape("%éé"));
    assert_eq!(error("/%ff"), ParseError::new("%ff", "UTF-8 once decoded"));
    for raw in ["", "http://host/a"] {
        assert_eq!(error(raw), ParseError::new(raw, "a path that starts with `/`"));
    }
    assert_eq!(
        error("/a%2Fb").to_string(),
        "found `%2F`, expected a path without backslash, control character or encoded slash"
    );
}

#[test]
fn length_and_depth_are_bounded() {
    assert!(NormalPath::parse(&format!("/{}", "a".repeat(PATH_BYTES_MAX - 1))).is_ok());
    assert!(NormalPath::parse(&format!("/a?{}", "a".repeat(PATH_BYTES_MAX))).is_ok());
    let bytes = PATH_BYTES_MAX + 1;
    assert_eq!(
        NormalPath::parse(&"/".repeat(bytes)),
        Err(ParseError::new(&format!("{bytes} bytes"), "a path of at most 8 KiB"))
    );
    assert!(NormalPath::parse(&"/a".repeat(SEGMENTS_MAX)).is_ok());
    let segments = SEGMENTS_MAX + 1;
    let error = NormalPath::parse(&"/a".repeat(segments)).unwrap_err();
    assert_eq!(error, ParseError::new("257 segments", "a path of at most 256 segments"));
}

#[test]
fn what_is_forwarded_has_no_dots_and_is_else_as_sent() {
    for (raw, forwarded) in [
        ("/a/b?x=/../y", "/a/b?x=/../y"),
        ("/a//b;v=1/%41/?q", "/a//b;v=1/%41/?q"),
        ("/a/./b/../c", "/a/c"),
        ("/a/b/..?q=..", "/a/?q=.."),
        ("/a/%2e%2E/b", "/b"),
        ("/..;x/admin", "/admin"),
        ("/a//../b", "/b"),
        ("/a/;x/../b", "/b"),
        ("/../..", "/"),
        ("/.hidden/...", "/.hidden/..."),
        ("*", "*"),
    ] {
        assert_eq!(forwarded_path(raw).unwrap(), forwarded, "{raw}");
    }
    assert!(forwarded_path("/./a%2fb").is_err());
}

fn respelled(segment: &str, spelling: u8) -> String {
    match spelling {
        0 => format!("//{segment}"),
        1 => format!("/./{segment}"),
        2 => format!("/{segment};x=1"),
        3 => segment.bytes().fold("/".to_owned(), |text, byte| format!("{text}%{byte:02x}")),
        4 => format!("/x/../{segment}"),
        _ => format!("/{segment}"),
    }
}

proptest! {
    #[test]
    fn a_path_that_is_left_as_it_is_would_be_normalised_to_the_same(raw in "(/|\\.|a|b|%41|;x|é|\\\\){0,12}") {
        if is_normal(&raw) {
            prop_assert_eq!(normalise(&raw), Ok(format!("/{raw}")));
            prop_assert_eq!(Spelling::of(&format!("/{raw}")), Spelling::Plain);
        }
    }

    #[test]
    fn a_normal_path_stays_as_it_is(raw in "/[a-c./;%25]{0,40}|/(\\PC|[./])*|\\PC*") {
        let Ok(path) = NormalPath::parse(&raw) else { return Ok(()) };
        let text = path.as_str();
        prop_assert!(text.starts_with('/') && (text == "/" || !text.ends_with('/')));
        for odd in ["//", "/./", "/../"] {
            prop_assert!(!format!("{text}/").contains(odd) || text == "/", "{}", text);
        }
        if !text.contains(['%', ';', '?', '#']) {
            let again = NormalPath::parse(text);
            prop_assert_eq!(again.map(|again| again.to_string()), Ok(text.to_owned()));
        }
    }

    #[test]
    fn what_was_matched_is_what_is_forwarded(raw in "(/|/|[a-c]|[.]{1,2}|%2[eE]|;|%61|[?#]){0,24}|/\\PC*") {
        let Ok(matched) = NormalPath::parse(&raw) else { return Ok(()) };
        let forwarded = forwarded_path(&raw).unwrap();
        prop_assert!(!forwarded.starts_with("//"), "{}", forwarded);
        prop_assert_eq!(NormalPath::parse(&forwarded), Ok(matched));
        let path = forwarded.split(['?', '#']).next().unwrap_or_default();
        for segment in path.split('/') {
            let name = decode(segment.split(';').next().unwrap_or_default()).unwrap();
            prop_assert!(name != "." && name != "..", "{}", forwarded);
        }
        prop_assert_eq!(forwarded_path(&forwarded).unwrap(), &*forwarded);
    }

    #[test]
    fn equivalent_spellings_meet(parts in prop::collection::vec(("[a-z]{1,4}", 0u8..6), 1..8)) {
        let plain: String = parts.iter().map(|(segment, _)| format!("/{segment}")).collect();
        let odd: String = parts.iter().map(|(segment, spelling)| respelled(segment, *spelling)).collect();
        prop_assert_eq!(normal(&odd), plain);
    }
}
