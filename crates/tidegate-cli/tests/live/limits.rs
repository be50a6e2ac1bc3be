//! The published limits, as JSON and as a page.

use serde_json::{Value, json};

use crate::support::{Contract, Daemon, Upstream, eventually};

const POLICY: &str = r#"
tidegate: 1
name: shop
version: 1.10
timezone: Europe/Berlin
tiers: [free, paid]
identity:
  trusted_proxies: [10.9.0.0/16]
  default_tier: free
  anonymous_tier: guest
  internal: { cidrs: [10.8.0.0/16] }
  attributes:
    api_key: { header: X-Api-Key }
    usd: given
operations:
  buy: { match: "POST|PUT /shop/{item}/buy", header: { X-Beta: hush } }
  pay: {}
block: { ips: [203.0.113.0/24] }
limits:
  buys:
    when: { operation: buy, authenticated: true, attributes: { api_key: k-123 } }
    by: user
    key: private:template:{user}
    token_bucket: { free: 2/min burst 4, paid: unlimited }
    describe: <b>Buying</b> & selling
    message: "At most {limit}"
    status: 503
  paid: { when: pay, by: user, cost: usd, quota: 5/day, exceed: warn }
  most: { when: pay, by: user, value: usd, ceiling: 0.5 }
  hidden: { by: ip, total: 77, publish: false }
  trial: { by: ip, total: 88, shadow: true }
"#;

const OTHER: &str = "tidegate: 1\nname: other\nlimits: { all: { by: ip, total: 1 } }\n";

#[test]
fn published_limits_are_told_with_their_numbers() {
    let daemon = Daemon::with_policy(POLICY, None);
    let told = Contract::of(&daemon).get("/v1/limits").json();
    let head = ["policy", "version", "enabled", "timezone", "tiers", "headers"];
    let head: Vec<&Value> = head.iter().map(|key| &told[key]).collect();
    let tiers = json!(["free", "paid", "guest"]);
    assert_eq!(
        head,
        [
            &json!("shop"),
            &json!("1.10"),
            &json!(true),
            &json!("Europe/Berlin"),
            &tiers,
            &json!("both")
        ]
    );
    assert_eq!(told["limits"].as_array().unwrap().len(), 3);
    assert_eq!(
        told["limits"][0],
        json!({
            "name": "buys", "describe": "<b>Buying</b> & selling", "algorithm": "token_bucket",
            "by": ["user"],
            "operations": [{
                "name": "buy",
                "patterns": [{ "methods": ["POST", "PUT"], "path": "/shop/{item}/buy" }]
            }],
            "conditions": { "authenticated": true, "attributes": { "api_key": [] } },
            "everyone": null,
            "tiers": {
                "free": { "spec": "2/min burst 4", "limit": 2, "window_ms": 60000, "burst": 4 },
                "paid": { "spec": "unlimited", "limit": null, "window_ms": null, "burst": null }
            },
            "values": null, "cost": null, "value": null, "counts": "all", "exceed": "reject",
            "message": "At most {limit}", "status": 503
        })
    );
    let paid = &told["limits"][1];
    assert_eq!((&paid["cost"], &paid["exceed"]), (&json!("usd"), &json!("warn")));
    assert_eq!(paid["everyone"]["spec"], "5/day");
    let most = &told["limits"][2];
    assert_eq!((&most["value"], &most["everyone"]["limit"]), (&json!("usd"), &json!(0.5)));
}

#[test]
fn nothing_private_is_on_the_page_or_in_the_json() {
    let daemon = Daemon::with_policy(POLICY, None);
    let contract = Contract::of(&daemon);
    for text in [contract.get("/limits").text(), contract.get("/v1/limits").text()] {
        for private in
            ["10.9.", "10.8.", "203.0.113", "hush", "private:template", "k-123", "hidden", "trial"]
        {
            assert!(!text.contains(private), "{private} in {text}");
        }
    }
}

#[test]
fn the_page_loads_nothing_runs_nothing_and_escapes_everything() {
    let daemon = Daemon::with_policy(POLICY, None);
    let page = Contract::of(&daemon).get("/limits");
    let (html, policy) = (page.text(), page.header("content-security-policy").unwrap());
    assert!(policy.starts_with("default-src 'none'; style-src 'sha256-"), "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(html.contains("&lt;b&gt;Buying&lt;/b&gt; &amp; selling"), "{html}");
    for outside in ["<script", "src=", "http://", "https://", "style=", "onclick", "<link"] {
        assert!(!html.contains(outside), "{outside} in {html}");
    }
}

#[test]
fn the_page_speaks_to_people() {
    let daemon = Daemon::with_policy(POLICY, None);
    let html = Contract::of(&daemon).get("/limits").text();
    for words in [
        "per minute",
        "bursts up to 4",
        "resets at midnight Europe/Berlin",
        "no limit",
        "refills evenly",
        "signed-in users only",
        "Retry-After",
        "RateLimit-Policy",
    ] {
        assert!(html.contains(words), "no `{words}` in {html}");
    }
}

#[test]
fn another_policy_is_chosen_by_name_and_json_by_accept() {
    let folder = tempfile::tempdir().unwrap();
    let paths = [("shop.yaml", POLICY), ("other.yaml", OTHER)].map(|(name, text)| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    });
    let daemon = Daemon::start(Daemon::command().args(&paths));
    let contract = Contract::of(&daemon);
    assert_eq!(contract.get("/v1/limits?policy=other").json()["policy"], "other");
    assert!(contract.get("/limits?policy=other").text().contains("<h1>Other</h1>"));
    assert_eq!(contract.get("/v1/limits").json()["policy"], "shop");
    let json =
        contract.send("GET", "/limits?policy=other", &[("Accept", "application/json")], None);
    assert_eq!(
        (json.json()["policy"].as_str(), json.header("vary")),
        (Some("other"), Some("accept"))
    );
    let chosen = contract.post("/v1/check", &json!({ "policy": "other", "ip": "192.0.2.1" }));
    assert_eq!(chosen.json()["limits"][0]["name"], "all");
    let unknown = contract.post("/v1/check", &json!({ "policy": "none" }));
    assert_eq!((unknown.status, &unknown.json()["field"]), (400, &json!("policy")));
}

#[test]
fn a_reload_shows_at_once() {
    let daemon = Daemon::with_policy(OTHER, None);
    let contract = Contract::of(&daemon);
    let before = contract.get("/v1/limits");
    let tag = before.header("etag").unwrap();
    std::fs::write(daemon.policy_path(), OTHER.replace("total: 1", "total: 2")).unwrap();
    daemon.signal("HUP");
    eventually("the new limit", || {
        let answer = contract.send("GET", "/v1/limits", &[("If-None-Match", tag)], None);
        answer.status == 200 && answer.json()["limits"][0]["everyone"]["limit"] == 2
    });
}

#[test]
fn the_gateway_shows_its_limits_to_everybody_at_the_path_that_it_is_told() {
    let upstream = Upstream::start();
    let policy = "{ tidegate: 1, name: shop, block: { ips: [127.0.0.0/8] },
                    limits: { all: { by: ip, total: 5 }, hush: { by: ip, total: 9, publish: false } } }";
    let arguments = ["--public-limits", "/about/limits"];
    let daemon = Daemon::with_policy_and(policy, Some(&upstream), &arguments);
    let gateway = daemon.gateway();
    let ask = |path: &str, accept: &str| gateway.send("GET", path, &[("Accept", accept)], None);
    let page = ask("/about/limits", "text/html,*/*;q=0.8");
    assert_eq!(page.status, 200, "even for those who are blocked");
    assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
    assert!(page.text().contains("Rate limits of shop") && !page.text().contains("hush"));
    assert_eq!(page.header("x-ratelimit-limit"), None, "it is not counted");
    for path in ["/about/limits?x=y&policy=none", "//about/limits", "/about/./limits"] {
        let answer = ask(path, "application/json");
        assert_eq!(answer.status, 200, "{path}");
        assert_eq!(answer.json(), daemon.api().get("/v1/limits").json());
    }
    let tag = page.header("etag").unwrap();
    assert_eq!(gateway.send("GET", "/about/limits", &[("If-None-Match", tag)], None).status, 304);
    let head = gateway.raw(b"HEAD /about/limits HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 ") && head.ends_with("\r\n\r\n"), "{head}");
    let posted = gateway.post("/about/limits", "{}");
    assert_eq!((posted.status, posted.header("allow")), (405, Some("GET, HEAD")));
    for path in ["/about/limits/", "/about", "/x/about/limits", "/limits"] {
        assert_eq!(gateway.get(path).status, 403, "{path} is the service's");
    }
    assert_eq!(upstream.count(), 0);
}
