//! Examples of calls and answers.

use serde_json::{Value, json};

pub(in crate::wire) const LEASE: &str = "5bd1a2c07e9f4a3b8c6d0e1f2a3b4c5d";

/// A check.
pub(in crate::wire) fn check() -> Value {
    json!({
        "policy": null, "method": "POST", "path": "/rooms/r9/bookings", "ip": "203.0.113.7",
        "user": "u1", "tier": "free", "internal": false, "country": null, "operation": null,
        "attributes": { "room": "r9" }, "headers": { "x-api-key": "k" }, "body": null, "cost": 1,
        "reserve": false
    })
}

/// A check that may wait.
pub(in crate::wire) fn acquire() -> Value {
    let mut check = check();
    check["max_wait_ms"] = json!(2_000);
    check
}

/// The refusal of a check.
pub(in crate::wire) fn decision() -> Value {
    json!({
        "allowed": false, "outcome": "limited", "limit": "booking-user", "status": 429,
        "retry_after_ms": 29500, "operation": "booking.create", "tier": "free", "warnings": [],
        "headers": { "Retry-After": "30" }, "body": {},
        "limits": [{
            "name": "booking-user", "algorithm": "sliding_window", "limit": 2, "window_ms": 60000,
            "remaining": 0, "reset_ms": 29500, "allowed": false, "shadow": false
        }],
        "lease": null, "degraded": false
    })
}

/// The answer to a check that might have waited.
pub(in crate::wire) fn acquired() -> Value {
    let mut decision = decision();
    decision["waited_ms"] = json!(0);
    decision
}

pub(in crate::wire) fn report() -> Value {
    json!({ "event": "limited", "attributes": { "email": "a@b.c" } })
}

pub(in crate::wire) fn consequences() -> Value {
    json!({ "delay_ms": 2_000, "warnings": [], "banned": false, "challenged": false, "flags": [],
            "degraded": false })
}

/// The solution of a challenge.
pub(in crate::wire) fn solution() -> Value {
    json!({ "user": "u1", "token": "c1.8f0e….61b2", "solution": "173511" })
}

/// The pass for a solution.
pub(in crate::wire) fn pass() -> Value {
    json!({
        "pass": "p1.8f0e….90aa", "expires_in_ms": 3_600_000,
        "cookie": "Tidegate-Pass=p1.8f0e….90aa; Path=/; Max-Age=3600; HttpOnly; SameSite=Lax; Secure"
    })
}

/// The limits of a small policy.
pub(in crate::wire) fn limits() -> Value {
    json!({
        "policy": "hostel-booking", "version": "1.0.0", "enabled": true, "timezone": "UTC",
        "tiers": ["free", "premium", "anonymous"], "headers": "both",
        "limits": [{
            "name": "booking-user", "describe": "Bookings of a user", "algorithm": "sliding_window",
            "by": ["user"],
            "operations": [{
                "name": "booking.create",
                "patterns": [{ "methods": ["POST"], "path": "/rooms/{room}/bookings" }]
            }],
            "conditions": {}, "everyone": null,
            "tiers": {
                "free": { "spec": "2/min", "limit": 2, "window_ms": 60000, "burst": null },
                "premium": { "spec": "10/min", "limit": 10, "window_ms": 60000, "burst": null }
            },
            "values": null, "cost": null, "value": null, "counts": "all", "exceed": "reject",
            "message": "Too many bookings, please slow down", "status": 429
        }]
    })
}
