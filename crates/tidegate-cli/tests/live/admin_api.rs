//! The document of the admin API, compared with its answers.

use serde_json::json;

use crate::support::{Contract, Daemon};

const POLICY: &str = "
tidegate: 1
name: shop
limits: { per-user: { by: user, total: 10 }, per-address: { by: ip, sliding_window: 5/h } }
";

#[test]
fn answers_about_status_keys_and_marks_fit_the_document() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--state-dir", folder.path().to_str().unwrap()];
    let daemon = Daemon::with_policy_and(POLICY, None, &arguments);
    daemon.check(&json!({ "user": "u1", "ip": "192.0.2.1" }));
    let contract = Contract::of_admin(&daemon, &[]);
    for page in ["/health", "/ready", "/metrics", "/admin/v1/openapi.json", "/admin/v1/status"] {
        assert_eq!(contract.get(page).status, 200, "{page}");
    }
    let keys = contract.get("/admin/v1/keys").json();
    assert_eq!(keys["keys"].as_array().unwrap().len(), 2, "{keys}");
    let subject = json!({ "user": "u1" });
    let ban = json!({ "key": subject, "for": "1h", "reason": "scrapes" });
    let flag = json!({ "key": subject, "flag": "review" });
    for (path, body) in [("/admin/v1/bans", ban), ("/admin/v1/flags", flag)] {
        assert_eq!(contract.post(path, &body).status, 200, "{path}");
        assert_eq!(contract.post(path, &json!({ "why": 1 })).status, 400, "{path}");
        assert_eq!(contract.get(&format!("{path}?count=1")).status, 200, "{path}");
        assert_eq!(contract.get(&format!("{path}?count=0")).status, 400, "{path}");
        let removed = contract.send("DELETE", &format!("{path}?user=u1"), &[], None);
        assert_eq!(removed.json(), json!({ "removed": 1 }), "{path}");
    }
    let deleted = contract.send("DELETE", "/admin/v1/keys?user=u1", &[], None);
    assert_eq!(deleted.json()["deleted"], 1);
    assert_eq!(contract.send("PUT", "/admin/v1/bans", &[], None).status, 405);
    assert_eq!(contract.get("/admin/v1/none").status, 404);
}
