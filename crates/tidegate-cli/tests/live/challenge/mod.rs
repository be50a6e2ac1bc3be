//! Challenges on both surfaces, by programs and in a real browser.

mod api;
mod browser;
mod gateway;
mod nodes;

use serde_json::Value;
use sha2::{Digest as _, Sha256};

/// A policy that challenges a client's second request.
const POLICY: &str = "
tidegate: 1
name: shop
challenge: { kind: proof_of_work, difficulty: 10, pass: 1h }
limits: { once: { by: client, total: 1, exceed: challenge } }
";

/// The first number that solves a challenge, found as a stranger would find it.
fn solved(challenge: &Value) -> String {
    let token = challenge["token"].as_str().unwrap();
    let bits = usize::try_from(challenge["difficulty"].as_u64().unwrap()).unwrap();
    assert_eq!(challenge["algorithm"], "SHA-256");
    let solves = |number: &String| {
        let hash = Sha256::digest(format!("{token}:{number}"));
        let zeros: String = hash.iter().take(4).map(|byte| format!("{byte:08b}")).collect();
        zeros.starts_with(&"0".repeat(bits))
    };
    (0_u64..).map(|number| number.to_string()).find(solves).unwrap()
}
