//! Every call of the decision API and of the admin API, with every token.

use crate::support::{Contract, Daemon, eventually};

const POLICY: &str = "{ tidegate: 1, name: shop, limits: { all: { by: global, total: 1000000 } } }";

/// Tokens, each with the SHA-256 of its role's name: `printf %s viewer | sha256sum`.
const TOKENS: [(&str, &str); 4] = [
    ("viewer", "d35ca5051b82ffc326a3b0b6574a9a3161dee16b9478a199ee39cd803ce5b799"),
    ("operator", "06e55b633481f7bb072957eabcf110c972e86691c3cfedabe088024bffe42f23"),
    ("superadmin", "186cf774c97b60a1c106ef718d10970a6a06e06bef89553d9ae65d938a886eae"),
    ("client", "948fe603f61dc036b5c596dc09fe3ce3f3d30dc90f024c85f3c82db2ccab679d"),
];

fn tokens_file(roles: &[&str]) -> String {
    let tokens = TOKENS.iter().filter(|(role, _)| roles.contains(role));
    tokens.map(|(role, hash)| format!("{role} a-{role} {hash}\n")).collect()
}

/// True if a token of this role may make a call that needs another.
fn covers(role: &str, needed: &str) -> bool {
    match role {
        "superadmin" => true,
        "operator" => needed != "superadmin",
        _ => role == needed,
    }
}

/// The status of a call with an empty body, which changes nothing.
fn status(contract: &Contract, call: (&str, &str), headers: &[(&str, &str)]) -> u16 {
    let (method, path) = call;
    let body = (method == "POST").then_some("{}");
    // What a selection selects is nothing.
    let path = if method == "DELETE" { format!("{path}?nothing=") } else { path.to_owned() };
    contract.client.status(method, &path, headers, body)
}

#[test]
fn every_call_takes_its_role_and_no_other_token() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, tokens_file(&TOKENS.map(|(role, _)| role))).unwrap();
    let arguments = ["--tokens", tokens.to_str().unwrap()];
    let daemon = Daemon::with_policy_and(POLICY, None, &arguments);
    let root = [("Authorization", "Bearer superadmin")];
    let contracts = [Contract::with_headers(&daemon, &root), Contract::of_admin(&daemon, &root)];
    for contract in &contracts {
        for (method, path, needed) in contract.calls() {
            let call = (method.as_str(), path.as_str());
            let Some(needed) = needed else {
                assert_eq!(status(contract, call, &[]), 200, "{method} {path}");
                continue;
            };
            for forged in ["", "Bearer", "Bearer nobody", "Basic superadmin", "superadmin"] {
                let found = status(contract, call, &[("Authorization", forged)]);
                assert_eq!(found, 401, "{method} {path} {forged:?}");
            }
            assert_eq!(status(contract, call, &[]), 401, "{method} {path}");
            for (role, _) in TOKENS {
                let bearer = format!("Bearer {role}");
                let found = status(contract, call, &[("Authorization", &bearer)]);
                let may = covers(role, &needed);
                assert_eq!(found != 403, may, "{method} {path} {role}: {found}");
                assert_ne!(found, 401, "{method} {path} {role}");
                let page = [("Authorization", &*bearer), ("Origin", "https://evil.example")];
                assert_eq!(status(contract, call, &page), 403, "{method} {path} {role}");
            }
        }
    }
    std::fs::write(&tokens, tokens_file(&["client", "viewer"])).unwrap();
    let withdrawn = || daemon.admin().send("GET", "/admin/v1/status", &root, None).status == 401;
    eventually("the token is withdrawn", withdrawn);
    for contract in &contracts {
        for (method, path, _) in contract.calls().iter().filter(|(_, _, role)| role.is_some()) {
            for role in ["operator", "superadmin"] {
                let bearer = format!("Bearer {role}");
                let found = status(contract, (method, path), &[("Authorization", &bearer)]);
                assert_eq!(found, 401, "{method} {path} {role}");
            }
        }
    }
}
