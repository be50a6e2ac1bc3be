//! The page in a real Chromium.

use serde_json::{Value, json};

use super::POLICY;
use crate::support::browser::Browser;
use crate::support::upstream::ReceivedRequest;
use crate::support::{Daemon, Reply, Upstream};

const GOOD: &str = "document.title === 'Shop'";
const WORKING: &str = "!!document.getElementById('challenge')";

/// A service with one page, and a form on it.
fn shop() -> Upstream {
    Upstream::replying(|seen| html(seen, "<title>Shop</title><h1>Welcome</h1>"))
}

fn html(_seen: &ReceivedRequest, body: &str) -> Reply {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {length}");
    Reply::Raw(format!("{head}\r\n\r\n{body}").into_bytes())
}

fn url(daemon: &Daemon, path: &str) -> String {
    format!("http://{}{path}", daemon.address("gateway"))
}

/// A page that is not solved while a test looks at it.
fn hard() -> String {
    POLICY.replace("difficulty: 10", "difficulty: 28")
}

#[test]
fn a_browser_solves_the_challenge_and_sees_the_page_it_asked_for() {
    let upstream = shop();
    let daemon = Daemon::with_policy(POLICY, Some(&upstream));
    daemon.gateway().get("/");
    let mut browser = Browser::start();
    browser.go(&url(&daemon, "/rooms?page=2#end"));
    browser.until(GOOD);
    assert_eq!(browser.look("location.href"), url(&daemon, "/rooms?page=2#end"));
    assert_eq!(browser.look("document.cookie"), "", "scripts cannot read the pass");
    browser.go(&url(&daemon, "/again"));
    browser.until("document.title === 'Shop' && location.pathname === '/again'");
    assert_eq!(browser.complaints(), [""; 0], "nothing is against the page's own rules");
    for seen in upstream.seen() {
        assert!(!seen.line.contains("tidegate"), "{}", seen.line);
        assert_eq!(seen.header("cookie"), None);
    }
}

#[test]
fn a_form_that_was_challenged_is_sent_again_only_when_the_visitor_says_so() {
    let upstream = shop();
    let daemon = Daemon::with_policy(POLICY, Some(&upstream));
    let mut browser = Browser::start();
    browser.go(&url(&daemon, "/"));
    browser.until(GOOD);
    browser.look(
        "document.body.innerHTML = '<form method=post action=/buy><input name=a value=1></form>';
         document.forms[0].submit()",
    );
    browser.until("document.getElementById('again')?.textContent === 'Send it again'");
    let posts = |upstream: &Upstream| {
        upstream.seen().iter().filter(|seen| seen.line.starts_with("POST")).count()
    };
    assert_eq!(posts(&upstream), 0);
    assert_eq!(browser.look("document.activeElement.id"), "again");
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn the_page_fits_a_phone_follows_the_colour_scheme_and_speaks_to_screen_readers() {
    let daemon = Daemon::with_policy(&hard(), Some(&shop()));
    daemon.gateway().get("/");
    let mut browser = Browser::start();
    let phone = json!({ "width": 320, "height": 568, "deviceScaleFactor": 2, "mobile": true });
    browser.call("Emulation.setDeviceMetricsOverride", &phone);
    browser.go(&url(&daemon, "/"));
    browser.until(WORKING);
    assert_eq!(browser.look("document.documentElement.scrollWidth <= innerWidth"), true);
    let background = "getComputedStyle(document.body).backgroundColor";
    let mut colours = ["light", "dark"].map(|scheme| {
        let feature = json!({ "name": "prefers-color-scheme", "value": scheme });
        browser.call("Emulation.setEmulatedMedia", &json!({ "features": [feature] }));
        browser.look(background).to_string()
    });
    colours.sort();
    assert_ne!(colours[0], colours[1]);
    browser.until("document.getElementById('bar').value > 0");
    let tree = browser.call("Accessibility.getFullAXTree", &json!({}));
    for (role, name) in [
        ("heading", "One moment, please"),
        ("progressbar", "How far the puzzle is"),
        ("main", ""),
        ("status", ""),
    ] {
        assert!(speaks(&tree, role, name), "{role} {name}");
    }
    assert_eq!(browser.look("document.documentElement.lang"), "en");
    assert_eq!(browser.complaints(), [""; 0]);
}

fn speaks(tree: &Value, role: &str, name: &str) -> bool {
    tree["nodes"].as_array().unwrap().iter().any(|node| {
        node["role"]["value"] == role && (name.is_empty() || node["name"]["value"] == name)
    })
}

#[test]
fn without_scripts_the_page_says_that_it_needs_them() {
    let daemon = Daemon::with_policy(&hard(), Some(&shop()));
    daemon.gateway().get("/");
    let mut browser = Browser::start();
    browser.call("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.go(&url(&daemon, "/"));
    crate::support::eventually("the text", || {
        let tree = browser.call("Accessibility.getFullAXTree", &json!({}));
        tree.to_string().contains("This check needs JavaScript")
    });
}

#[test]
fn a_browser_that_keeps_no_cookies_is_not_kept_busy_for_ever() {
    // An expired cookie is not kept.
    let policy = POLICY.replace("pass: 1h", "pass: 1ms");
    let daemon = Daemon::with_policy(&policy, Some(&shop()));
    daemon.gateway().get("/");
    let mut browser = Browser::start();
    browser.go(&url(&daemon, "/"));
    browser.until(
        "!!document.getElementById('say')?.textContent.includes('does not keep the cookie')",
    );
    assert_eq!(browser.look("document.getElementById('again').hidden"), false);
}

/// A network that counts answers, and room for several workers.
const COUNTED: &str = "
    window.answers = 0;
    window.fetch = () => { answers++; return new Promise(() => {}); };
    Object.defineProperty(navigator, 'hardwareConcurrency', { value: 4 });";

/// Workers that find a solution and then fail.
const FAILING: &str = "
    window.Worker = class {
        terminate() {}
        postMessage() {
            setTimeout(() => {
                this.onmessage({ data: { found: '1' } });
                this.onerror();
                window.over = true;
            }, 0);
        }
    };";

/// A worker that finds a solution, and has no second beside it.
const ALONE: &str = "
    let made = 0;
    window.Worker = class {
        constructor() { if (++made > 1) throw new Error('no more'); }
        terminate() { this.ended = true; }
        postMessage() {
            setTimeout(() => {
                if (!this.ended) this.onmessage({ data: { found: '1' } });
                window.over = true;
            }, 0);
        }
    };";

#[test]
fn a_page_whose_workers_fail_does_not_answer_twice() {
    let policy = POLICY.replace("difficulty: 10", "difficulty: 1");
    let daemon = Daemon::with_policy(&policy, Some(&shop()));
    daemon.gateway().get("/");
    for workers in [FAILING, ALONE] {
        let mut browser = Browser::start();
        let script = json!({ "source": format!("{{{COUNTED}{workers}}}") });
        browser.call("Page.addScriptToEvaluateOnNewDocument", &script);
        browser.go(&url(&daemon, "/"));
        browser.until("window.over === true");
        assert_eq!(browser.look("window.answers"), 1, "{workers}");
    }
}

/// A stand-in for a CAPTCHA service: its script, and the judge of its tokens.
fn service() -> Upstream {
    Upstream::replying(|seen| {
        if seen.line.starts_with("POST") {
            let is_good = String::from_utf8_lossy(&seen.body).contains("response=a+person");
            return Reply::Answer(200, format!("{{\"success\":{is_good}}}"));
        }
        let script = "const at = document.querySelector('.cf-turnstile');
            window[at.dataset.callback](at.dataset.sitekey === 'site' ? 'a person' : 'nobody');";
        let length = script.len();
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/javascript\r\nContent-Length";
        Reply::Raw(format!("{head}: {length}\r\n\r\n{script}").into_bytes())
    })
}

#[test]
fn a_captcha_is_shown_judged_by_its_service_and_passed() {
    let (upstream, service) = (shop(), service());
    let (base, folder) = (service.url(), tempfile::tempdir().unwrap());
    let captcha = format!(
        "challenge: {{ kind: captcha, verify_url: '{base}/siteverify', secret_env: CAPTCHA, \
         site_key: site, script_url: '{base}/api.js' }}"
    );
    let own = "challenge: { kind: proof_of_work, difficulty: 10, pass: 1h }";
    let path = folder.path().join("policy.yaml");
    std::fs::write(&path, POLICY.replace(own, &captcha)).unwrap();
    let mut command = Daemon::command();
    command.arg(&path).args(["--gateway", "127.0.0.1:0", "--upstream", &upstream.url()]);
    let daemon = Daemon::start(command.env("CAPTCHA", "hush"));
    daemon.gateway().get("/");
    let mut browser = Browser::start();
    browser.go(&url(&daemon, "/"));
    browser.until(GOOD);
    let asked = service.seen().into_iter().find(|seen| seen.line.starts_with("POST")).unwrap();
    let form = String::from_utf8(asked.body).unwrap();
    assert_eq!(form, "secret=hush&response=a+person&remoteip=127.0.0.1");
    assert_eq!(browser.complaints(), [""; 0]);
    let challenge = daemon.gateway().post("/.well-known/tidegate/challenge", "{}").json();
    let said = json!({ "token": challenge["challenge"]["token"], "solution": "a machine" });
    let refused = daemon.gateway().post("/.well-known/tidegate/challenge", &said.to_string());
    assert_eq!((refused.status, &refused.json()["reason"]), (403, &json!("wrong")));
}
