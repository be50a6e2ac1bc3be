//! Leases on a store that two nodes share: what one gave, any of them takes back.

use std::sync::Arc;

use http_body_util::BodyExt as _;
use tidegate::Amount;
use tidegate::Request;
use tidegate::engine::Wait;

use super::*;
use crate::shared::follow;
use crate::shared::tests::{TestRedis, eventually};
use crate::telemetry::{Present, RequestId};

const LIMITS: &str = "
tidegate: 1
name: api
limits:
  tokens: { by: user, token_bucket: 100/h burst 100 }
  logins: { by: ip, sliding_window: 5/h, cost: 1, counts: failures }
  places: { by: user, concurrency: 1, lease: 1h }
";

async fn nodes(redis: &TestRedis) -> [App; 2] {
    [redis.node_with(LIMITS).await, redis.node_with(LIMITS).await]
}

fn request(cost: u64) -> Request<'static> {
    let request = Request::new("GET", "/").user("u1").ip([192, 0, 2, 1].into()).reserve();
    request.cost(Amount::from_units(cost).unwrap())
}

async fn decide(app: &App, cost: u64) -> tidegate::Decision {
    let request = request(cost);
    let mut context = app.engine.context(&request).unwrap();
    app.decide(&mut context, RequestId::random, Wait::Never).await.unwrap().0
}

/// The name of a lease on a request of this cost.
async fn lease(app: &App, cost: u64) -> String {
    let decision = decide(app, cost).await;
    app.leases.give(decision.reservation.unwrap(), None, decision.now)
}

fn said(lease: &str, more: &str) -> Vec<u8> {
    format!("{{\"lease\":\"{lease}\"{more}}}").into_bytes()
}

async fn told(answer: Answer) -> (u16, String) {
    let response = answer.unwrap_or_else(|ErrorResponse(response)| *response);
    let status = response.status().as_u16();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (status, String::from_utf8(body.to_vec()).unwrap())
}

fn done(what: &str, done: bool) -> (u16, String) {
    (200, format!("{{\"{what}\":{done}}}"))
}

#[tokio::test]
async fn a_place_is_renewed_and_given_back_on_another_node_and_only_once() {
    let redis = TestRedis::start();
    let [one, other] = nodes(&redis).await;
    let lease = lease(&one, 1).await;
    assert_eq!(decide(&other, 1).await.limit_name(), Some("places"));
    assert_eq!(told(renew(&other, &said(&lease, "")).await).await, done("renewed", true));
    assert_eq!(told(release(&other, &said(&lease, "")).await).await, done("released", true));
    let again = decide(&other, 1).await;
    assert!(again.is_allowed());
    for node in [&one, &other] {
        assert_eq!(told(release(node, &said(&lease, "")).await).await, done("released", false));
    }
    assert_eq!(decide(&one, 1).await.limit_name(), Some("places"), "another's place stays");
    assert_eq!((one.leases.len(), other.leases.len()), (0, 0));
}

#[tokio::test]
async fn a_lease_is_settled_on_another_node_and_only_once_on_all() {
    let redis = TestRedis::start();
    let [one, other] = nodes(&redis).await;
    let lease = lease(&one, 60).await;
    told(release(&other, &said(&lease, "")).await).await;
    let cost = said(&lease, ",\"cost\":10,\"status\":200");
    assert_eq!(told(settle(&other, &cost).await).await, done("settled", true));
    for node in [&one, &other] {
        assert_eq!(told(settle(node, &cost).await).await.0, 404);
    }
    let seen = decide(&one, 0).await;
    let remaining = |name: &str| {
        let named = |report: &&tidegate::LimitReport| {
            seen.limit_of(report).is_some_and(|limit| limit.name() == name)
        };
        seen.limits.iter().find(named).unwrap().remaining()
    };
    // Looking costs a login.
    assert_eq!((remaining("tokens"), remaining("logins")), (90, 4));
}

#[tokio::test]
async fn what_no_node_has_given_is_not_known() {
    let redis = TestRedis::start();
    let [one, other] = nodes(&redis).await;
    let mut lease = lease(&one, 1).await;
    lease.replace_range(..2, if lease.starts_with("00") { "11" } else { "00" });
    assert_eq!(told(release(&other, &said(&lease, "")).await).await.0, 404);
    assert_eq!(told(release(&other, &said("what", "")).await).await.0, 404);
}

/// The same while the store is lost.
fn lost(what: &str, done: bool) -> (u16, String) {
    (200, format!("{{\"{what}\":{done},\"degraded\":true}}"))
}

#[tokio::test]
async fn what_was_charged_while_the_store_was_lost_is_settled_where_it_was() {
    let redis = TestRedis::start();
    let [one, other] = nodes(&redis).await;
    redis.stop(&[&one, &other]).await;
    let lease = lease(&one, 1).await;
    assert_eq!(told(release(&other, &said(&lease, "")).await).await.0, 404);
    assert_eq!(told(release(&one, &said(&lease, "")).await).await, lost("released", true));
}

#[tokio::test]
async fn what_is_told_while_the_store_is_lost_is_done_once_it_is_back() {
    let redis = TestRedis::start();
    let [one, other] = nodes(&redis).await.map(Arc::new);
    let lease = lease(&one, 60).await;
    redis.stop(&[&one, &other]).await;
    assert_eq!(told(renew(&one, &said(&lease, "")).await).await, lost("renewed", true));
    assert_eq!(told(release(&one, &said(&lease, "")).await).await, lost("released", true));
    let cost = said(&lease, ",\"cost\":10,\"status\":200");
    for node in [&one, &one, &other] {
        assert_eq!(told(settle(node, &cost).await).await, lost("settled", true));
    }
    assert_eq!(one.engine.store().shared().unwrap().corrections(), (3, 0));

    redis.resume(&[&one, &other]).await;
    for node in [&one, &other] {
        let following = tokio::spawn(follow(Arc::clone(node)));
        eventually(async || node.engine.store().shared().unwrap().corrections() == (0, 0)).await;
        following.abort();
    }
    let seen = decide(&one, 0).await;
    assert_eq!(seen.limits[0].remaining(), 90, "once, however often it was told: {seen:?}");
    assert_eq!(told(settle(&one, &cost).await).await.0, 404);
}

#[tokio::test]
async fn a_settlement_tells_cost_and_status_in_one_call() {
    let redis = TestRedis::start();
    let [one, _] = nodes(&redis).await;
    let lease = lease(&one, 60).await;
    told(release(&one, &said(&lease, "")).await).await;
    let calls = |app: &App| {
        let page = app.metrics.render(&Present::default());
        let count = "tidegate_store_seconds_count{op=\"amend\"} ";
        let line = page.lines().find_map(|line| line.strip_prefix(count)).unwrap();
        line.parse::<u64>().unwrap()
    };
    let before = calls(&one);
    let both = said(&lease, ",\"cost\":10,\"status\":200");
    assert_eq!(told(settle(&one, &both).await).await, done("settled", true));
    assert_eq!(calls(&one), before + 1);
}
