use super::*;

fn refusal(url: &str) -> String {
    Config::parse(url).unwrap_err().to_string()
}

fn url(url: &str) -> (Option<String>, Option<String>, String, u32) {
    let config = Config::parse(url).unwrap();
    (config.user.clone(), config.password.clone(), config.address(), config.database)
}

fn some(text: &str) -> Option<String> {
    Some(text.to_owned())
}

#[test]
fn every_part_of_a_url_is_read() {
    assert_eq!(url("redis://localhost"), (None, None, "localhost:6379".to_owned(), 0));
    assert_eq!(
        url("redis://tide:gate@10.0.0.1:6380/2"),
        (some("tide"), some("gate"), "10.0.0.1:6380".to_owned(), 2)
    );
    assert_eq!(
        url("rediss://:p%40ss%2F%25@[::1]:7000/"),
        (None, some("p@ss/%"), "[::1]:7000".to_owned(), 0)
    );
    assert_eq!(url("redis://u:p@ss@h/1"), (some("u"), some("p@ss"), "h:6379".to_owned(), 1));
}

#[test]
fn only_rediss_means_tls() {
    assert!(Config::parse("redis://h").unwrap().tls.is_none());
    assert!(matches!(Config::parse("rediss://h").unwrap().tls, Some(Tls::Public)));
}

#[test]
fn the_defaults_are_those_of_the_documentation() {
    let config = Config::parse("redis://h").unwrap();
    assert_eq!(
        (&*config.prefix, config.timeout, config.nodes),
        ("tg:", Duration::from_millis(20), 1)
    );
}

#[test]
fn what_is_no_store_is_refused_with_what_was_expected() {
    for (url, expected) in [
        ("", "expected a store that begins with"),
        ("localhost:6379", "expected a store that begins with"),
        ("valkey://h", "expected a store that begins with"),
        ("redis://", "expected a host name"),
        ("redis://a b", "expected a host name"),
        ("redis://h:0", "expected a port"),
        ("redis://h:65536", "expected a port"),
        ("redis://h:", "expected a port"),
        ("redis://::1", "must stand in `[]`"),
        ("redis://[::1", "lacks its `]`"),
        ("redis://[::1]6379", "expected `:PORT`"),
        ("redis://h/one", "expected the database as a number"),
        ("redis://h/-1", "expected the database as a number"),
        ("redis://h/99999999999", "expected the database as a number"),
        ("redis://h/1?timeout=3", "found `?` or `#`"),
        ("redis://a,b", "found several servers"),
        ("redis://secret@h", "found no `:`"),
        ("redis://:a%2@h", "two hexadecimal digits"),
        ("redis://:%ff@h", "must be UTF-8"),
        ("redis+cluster://a,,b", "expected a host name"),
        ("redis+cluster://a,b/3", "a cluster has only the database 0"),
        ("redis+sentinel://a,b", "expected the master's name"),
        ("redis+sentinel://a/x/y", "expected the database as a number"),
    ] {
        let found = refusal(url);
        assert!(found.contains(expected), "{url}: {found}");
    }
}

#[test]
fn lists_of_servers_are_read() {
    for (url, shown) in [
        ("redis+cluster://u:p@a,b:7000,[::1]/", "redis+cluster://a:6379,b:7000,[::1]:6379"),
        ("rediss+cluster://a", "rediss+cluster://a:6379"),
        ("redis+sentinel://a,b:7000/main", "redis+sentinel://a:26379,b:7000/main/0"),
        ("rediss+sentinel://a/main/3", "rediss+sentinel://a:26379/main/3"),
    ] {
        let config = Config::parse(url).unwrap();
        assert_eq!(
            (config.to_string(), config.tls.is_some()),
            (shown.to_owned(), shown.starts_with("rediss"))
        );
    }
}

#[test]
fn a_tag_stands_behind_the_prefix_and_only_in_a_cluster() {
    let cluster = || Config::parse("redis+cluster://a").unwrap().prefix("shop:").unwrap();
    assert_eq!(&*cluster().key_prefix(), "shop:");
    assert_eq!(&*cluster().cluster_tag("one").unwrap().key_prefix(), "shop:{one}");
    for tag in ["", "a b", "a}b", &"x".repeat(33)] {
        assert!(matches!(cluster().cluster_tag(tag), Err(ConfigError::Tag(_))), "{tag}");
    }
    let single = Config::parse("redis://a").unwrap();
    assert_eq!(single.cluster_tag("one").unwrap_err(), ConfigError::NoSlots);
}

#[test]
fn nothing_that_is_printed_holds_the_password() {
    let config = Config::parse("rediss://tide:hunter2@h/1").unwrap();
    assert_eq!(format!("{config} {config:?}"), "rediss://h:6379/1 Config(rediss://h:6379/1)");
    for url in ["redis://tide:hunter2@h:x", "redis://tide:hunter2?@h", "redis://hunter2@h"] {
        assert!(!refusal(url).contains("hunter2"));
    }
}

#[test]
fn prefixes_and_timeouts_are_bounded() {
    let config = || Config::parse("redis://h").unwrap();
    assert_eq!(&*config().prefix("shop:").unwrap().prefix, "shop:");
    for prefix in ["a b", "{a}", "a*", &"x".repeat(65)] {
        assert!(config().prefix(prefix).is_err(), "{prefix}");
    }
    assert!(config().timeout(Duration::ZERO).is_err());
    assert!(config().timeout(Duration::from_secs(11)).is_err());
    assert_eq!(config().nodes(0).nodes, 1);
}
