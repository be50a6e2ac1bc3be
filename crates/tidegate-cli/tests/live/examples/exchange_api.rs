//! The exchange's services: positions, volumes and subscriptions, which no gateway sees.

use serde_json::{Value, json};

use super::Example;
use super::exchange::LIMITS_ALONE;

const NAME: &str = "exchange";

fn accept(tier: &str, kyc: &str, position: u64, notional: u64) -> Value {
    let attributes = json!({ "kyc": kyc, "position_usd": position, "notional_usd": notional });
    let user = format!("{tier}{kyc}");
    json!({ "operation": "order.accept", "user": user, "tier": tier, "attributes": attributes })
}

#[test]
fn positions_have_a_ceiling_by_tier() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    let check = |request: Value| example.daemon.check(&request).json();
    for (tier, most) in
        [("retail", 100_000), ("intermediate", 1_000_000), ("professional", 10_000_000)]
    {
        assert_eq!(check(accept(tier, "4", most, 1))["allowed"], true, "{tier}");
        let refused = check(accept(tier, "4", most + 1, 1));
        assert_eq!((&refused["allowed"], &refused["limit"]), (&json!(false), &json!("position")));
        assert_eq!(refused["retry_after_ms"], Value::Null, "no waiting helps");
        assert_eq!(refused["body"]["message"], "Position limit exceeded");
    }
}

#[test]
fn volumes_of_a_day_depend_on_the_kyc_level() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    let check = |request: Value| example.daemon.check(&request).json();
    for (kyc, most) in [("1", 100_000), ("2", 1_000_000), ("3", 10_000_000)] {
        assert_eq!(check(accept("market_maker", kyc, 1, most))["allowed"], true, "{kyc}");
        let refused = check(accept("market_maker", kyc, 1, 1));
        assert_eq!(refused["limit"], "volume-per-day", "{refused}");
        assert_eq!(refused["body"]["limit"], most);
    }
    assert_eq!(check(accept("market_maker", "4", 1, 1_000_000_000))["allowed"], true);
}

#[test]
fn withdrawals_of_a_day_depend_on_the_kyc_level() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    for (kyc, most) in [("1", 10_000), ("2", 100_000), ("3", 1_000_000)] {
        let withdraw = |usd: u64| {
            let attributes = json!({ "kyc": kyc, "amount_usd": usd });
            let user = format!("u{kyc}");
            let request =
                json!({ "operation": "withdrawal", "user": user, "attributes": attributes });
            example.daemon.check(&request).json()
        };
        assert_eq!(withdraw(most)["allowed"], true, "{kyc}");
        assert_eq!(withdraw(1)["limit"], "withdrawn-per-day", "{kyc}");
    }
}

#[test]
fn orders_of_a_batch_are_counted_one_by_one() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    for (tier, rate) in
        [("retail", 5), ("intermediate", 20), ("professional", 100), ("market_maker", 500)]
    {
        let place = |cost: u64| json!({ "operation": "order.place", "user": tier, "tier": tier, "cost": cost });
        // A second later there would be `rate` more.
        let checks = json!([place(2 * rate), place(2 * rate)]);
        let answer = example.daemon.api().post("/v1/check/batch", &checks.to_string()).json();
        assert_eq!(answer[0]["allowed"], true, "{tier}: {}", answer[0]);
        assert_eq!(answer[1]["limit"], "orders-per-second", "{tier}");
        assert_eq!(answer[1]["body"]["limit"], rate);
    }
}

#[test]
fn subscriptions_hold_their_places_until_they_are_released() {
    let example = Example::start_with(NAME, &[], &LIMITS_ALONE);
    for (operation, most) in [("ws.market.subscribe", 50), ("ws.private.subscribe", 20)] {
        let request = json!({ "operation": operation, "attributes": { "connection": "c1" } });
        let subscribe = || example.daemon.check(&request).json();
        let leases: Vec<Value> = (0..most).map(|_| subscribe()["lease"].clone()).collect();
        assert!(leases.iter().all(Value::is_string), "{leases:?}");
        let refused = subscribe();
        assert_eq!(refused["allowed"], false);
        assert_eq!(refused["body"]["message"], "Subscription limit exceeded");
        let release = json!({ "lease": leases[0] }).to_string();
        assert_eq!(example.daemon.api().post("/v1/release", &release).status / 100, 2);
        assert_eq!(subscribe()["allowed"], true);
    }
}
