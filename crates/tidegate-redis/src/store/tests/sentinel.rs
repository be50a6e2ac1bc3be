//! A server that its sentinels replace.

use tidegate_testkit::servers::Sentinels;

use super::*;

fn config(deployment: &Sentinels) -> Config {
    let sentinels: Vec<String> =
        deployment.sentinels().iter().map(|sentinel| sentinel.addr().to_string()).collect();
    let url = format!("redis+sentinel://{}/{}", sentinels.join(","), Sentinels::NAME);
    Config::parse(&url).unwrap()
}

/// Decides until the store does, with `before` left; what is left then. Whatever was not answered may
/// have been charged.
async fn decided(store: &RedisStore, key: u128, before: u64) -> u64 {
    let mut charged = 1;
    let decided = async {
        loop {
            if let Ok(answer) = store.decide(&plan(key)).await {
                return answer.replies[0].reading.available.whole();
            }
            charged += 1;
            tokio::task::yield_now().await;
        }
    };
    let left = tokio::time::timeout(PATIENCE, decided).await.unwrap();
    assert!(left < before && left + charged >= before, "{left} of {before}, {charged} times");
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn the_server_that_sentinels_name_is_asked_whoever_it_is() {
    // One: several that were told to hurry undo what one of them began by hand.
    let deployment = Sentinels::start(1).unwrap();
    let store = connected(config(&deployment)).await;
    let left = decided(&store, 1, u64::from(LIMIT)).await;
    deployment.wait_until_in_step().unwrap();
    // In peace: the old master goes on as a replica, which writes nothing.
    let before = deployment.primary().unwrap();
    let sentinel = &deployment.sentinels()[0];
    let handed_over = async {
        // Not before the sentinel knows the replica well.
        while sentinel.command(&["SENTINEL", "FAILOVER", Sentinels::NAME]).is_err() {
            sleep(RETRY).await;
        }
        // Until then it takes writes, which are lost. Its clients are cut off in between.
        while !before.info("role").is_ok_and(|role| role == "slave") {
            // It may be refused by then.
            let _ = store.decide(&plan(2)).await;
        }
    };
    tokio::time::timeout(PATIENCE, handed_over).await.unwrap();
    let left = decided(&store, 1, left).await;
    // In war.
    reaches(&store, BreakerState::Healthy).await;
    let follows =
        |server: &Server| server.info("master_link_status").is_ok_and(|link| link == "up");
    while !deployment.servers().iter().any(follows) {
        sleep(RETRY).await;
    }
    deployment.wait_until_in_step().unwrap();
    deployment.fail_over().unwrap();
    decided(&store, 1, left).await;
    reaches(&store, BreakerState::Healthy).await;
}

#[tokio::test]
async fn a_server_that_no_sentinel_knows_is_told() {
    let deployment = Sentinels::start(1).unwrap();
    let url = config(&deployment).to_string().replace(Sentinels::NAME, "other");
    let store = RedisStore::connect(&Config::parse(&url).unwrap());
    let error = store.secret(Duration::from_millis(500)).await.unwrap_err();
    assert!(error.detail.contains("does not know `other`"), "{error}");
}

#[tokio::test]
async fn sentinels_that_want_a_password_are_told_that_of_the_server() {
    let deployment = Sentinels::start(1).unwrap();
    let sentinel = &deployment.sentinels()[0];
    let auth = ["SENTINEL", "SET", Sentinels::NAME, "auth-pass", "right"];
    sentinel.command(&auth).unwrap();
    deployment.servers()[0].command(&["CONFIG", "SET", "requirepass", "right"]).unwrap();
    sentinel.command(&["ACL", "SETUSER", "default", "resetpass", ">right"]).unwrap();
    let url = config(&deployment).to_string();
    let store = RedisStore::connect(&Config::parse(&url.replace("//", "//:right@")).unwrap());
    assert!(store.ready(PATIENCE).await, "{:?}", store.health());
    let stranger = RedisStore::connect(&Config::parse(&url).unwrap());
    let error = stranger.secret(Duration::from_millis(500)).await.unwrap_err();
    assert!(error.detail.contains("NOAUTH"), "{error}");
}
