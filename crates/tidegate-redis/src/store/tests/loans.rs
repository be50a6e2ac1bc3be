//! Nodes that borrow tokens of leased buckets from one server.

use tidegate::clock::SystemClock;
use tidegate_testkit::checkers::Entry;
use tidegate_testkit::checkers::trouble::{Trouble, check_bound};
use tidegate_testkit::servers::Cluster;

use super::*;

const BURST: u64 = 400;

fn leased(key: u128, per_second: u64) -> Plan {
    let units = |units| Amount::from_units(units).unwrap();
    let spec = Spec::TokenBucket(token_bucket::Spec {
        count: units(per_second),
        period_us: 1_000_000,
        burst: units(BURST),
    });
    let mut plan = plan(key);
    plan.levels[0] = Level { spec, leased: true, ..plan.levels[0] };
    plan.names = vec![format!("bucket:{key}").into()];
    plan
}

/// As the engine asks: without waiting, if that can be.
async fn decide(store: &RedisStore, plan: &Plan) -> Result<Answer, StoreError> {
    match store.decide_at_once(plan) {
        Some(answer) => Ok(answer),
        None => store.decide(plan).await,
    }
}

fn is_allowed(answer: &Answer) -> bool {
    answer.replies.iter().all(|reply| reply.verdict == Verdict::Allowed)
}

/// Asks until something is borrowed; how many that took.
async fn borrows(store: &RedisStore, plan: &Plan) -> u64 {
    let borrowed = async {
        let mut asked = 0;
        while store.loan_health().held == 0 {
            asked += u64::from(is_allowed(&decide(store, plan).await.unwrap()));
            sleep(Duration::from_millis(1)).await;
        }
        asked
    };
    tokio::time::timeout(PATIENCE, borrowed).await.unwrap()
}

/// What the server has left, asked by somebody who holds nothing.
async fn left(store: &RedisStore, plan: &Plan) -> u64 {
    let look = Plan { mode: Mode::Peek, ..plan.clone() };
    store.decide(&look).await.unwrap().replies[0].reading.available.whole()
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_spend_what_they_borrow_within_the_bound_of_one_bucket() {
    let server = Server::start().unwrap();
    let nodes = [connected(patient(&server)).await, connected(patient(&server)).await];
    spend_within_the_bound(&nodes).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_on_a_cluster_borrow_too_and_give_back_and_spend_what_they_have_while_it_is_lost() {
    let cluster = Cluster::start().unwrap();
    let config = cluster::config(&cluster);
    let nodes = [connected(config.clone()).await, connected(config.clone()).await];
    spend_within_the_bound(&nodes).await;
    gives_everything_back(connected(config.clone()).await, connected(config).await).await;
    let plan = leased(6, 1);
    borrows(&nodes[0], &plan).await;
    let owner = cluster.first_owner_of(cluster.slot_of("tg:bucket:6").unwrap());
    cluster.nodes()[owner].kill().unwrap();
    assert!(nodes[0].decide_at_once(&plan).is_some(), "what it holds is spent without the server");
    cluster.lose(owner).unwrap();
    let answered = async {
        while nodes[1].decide(&plan).await.is_err() {
            sleep(RETRY).await;
        }
    };
    tokio::time::timeout(2 * PATIENCE, answered).await.unwrap();
    reaches(&nodes[1], BreakerState::Healthy).await;
}

async fn spend_within_the_bound(nodes: &[RedisStore; 2]) {
    let (log, mut asking) = (Arc::new(std::sync::Mutex::new(Vec::new())), JoinSet::new());
    let clock = SystemClock::new();
    for task in 0..4 {
        let (node, plan) = (nodes[task % 2].clone(), leased(1, 50));
        let (log, clock) = (Arc::clone(&log), clock.clone());
        asking.spawn(async move {
            let until_us = clock.steady_us() + 2_000_000;
            while clock.steady_us() < until_us {
                let answer = decide(&node, &plan).await.unwrap();
                if is_allowed(&answer) {
                    log.lock().unwrap().push(Entry::admitted("k", answer.now.unix_us, Amount::ONE));
                } else {
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
    let mut log = std::mem::take(&mut *log.lock().unwrap());
    log.sort_by_key(|entry| entry.time_us);
    assert!(log.len() >= usize::try_from(BURST).unwrap(), "{} were let in", log.len());
    for node in nodes {
        assert!(node.loan_health().spent > 0, "{:?}", node.loan_health());
    }
    // What is spent of a loan is logged by the time that the store's answer took to come, at most.
    let trouble = Trouble { nodes: 2, off_by_us: 500_000, ..Trouble::default() };
    let spec = leased(1, 50).levels[0].spec;
    check_bound(&log, &spec, &trouble).unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_dead_node_had_borrowed_is_back_after_two_epochs() {
    let server = Server::start().unwrap();
    let (one, other) = (connected(patient(&server)).await, connected(patient(&server)).await);
    // Refilled within a second, were it not for the loan.
    let plan = leased(2, 1_000);
    borrows(&one, &plan).await;
    drop(one);
    assert!(left(&other, &plan).await < BURST);
    other.set_clock(Time::Fixed(SystemClock::new().steady_us() + 10_000_000));
    assert_eq!(left(&other, &plan).await, BURST);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_ends_gives_everything_back() {
    let server = Server::start().unwrap();
    let (one, other) = (connected(patient(&server)).await, connected(patient(&server)).await);
    gives_everything_back(one, other).await;
}

async fn gives_everything_back(one: RedisStore, other: RedisStore) {
    let mut slow = leased(3, 1);
    if let Spec::TokenBucket(spec) = &mut slow.levels[0].spec {
        spec.period_us = 3_600_000_000;
    }
    let spent = borrows(&one, &slow).await;
    assert!(left(&other, &slow).await < BURST - spent, "some of it is lent");
    one.close().await;
    assert_eq!(left(&other, &slow).await, BURST - spent);
    assert_eq!((one.loan_health().held, one.loan_health().outstanding), (0, 0));
    assert!(is_allowed(&decide(&one, &slow).await.unwrap()), "it still asks");
    assert_eq!(one.loan_health().held, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_borrowed_is_spent_while_the_server_is_lost_and_no_more() {
    let server = Server::start().unwrap();
    let store = connected(config(&server).timeout(Duration::from_millis(500)).unwrap()).await;
    let plan = leased(4, 1);
    borrows(&store, &plan).await;
    server.kill().unwrap();
    let held = store.loan_health().outstanding / Amount::ONE.micros();
    let mut spent = 0;
    while store.decide_at_once(&plan).is_some() {
        spent += 1;
    }
    assert!((1..=held).contains(&spent), "{spent} of {held}");
    assert!(decide(&store, &plan).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_charged_to_a_loan_is_given_back_to_it() {
    let server = Server::start().unwrap();
    let store = connected(patient(&server)).await;
    let mut plan = leased(5, 1);
    plan.levels[0].refundable = true;
    borrows(&store, &plan).await;
    let before = store.loan_health().outstanding;
    plan.holder = 77;
    let answer = store.decide_at_once(&plan).unwrap();
    let refund = Amendment {
        level: plan.levels[0],
        name: plan.names.first().cloned(),
        charged_at_us: answer.replies[0].charged_at_us,
        holder: plan.holder,
        change: Change::Refund(Amount::ONE),
    };
    assert_eq!(store.loan_health().outstanding, before - Amount::ONE.micros());
    assert!(store.amend(answer.now, &[refund]).await.unwrap()[0]);
    assert_eq!(store.loan_health().outstanding, before);
}
