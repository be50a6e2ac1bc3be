//! A cluster, and a server with sentinels, over TLS alone.

use rcgen::{CertifiedKey, KeyPair, generate_simple_self_signed};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tidegate_testkit::servers::{Cluster, Sentinels, Tls};

use super::*;

/// A certificate for this machine, and the files that servers read it from.
struct Certified {
    made: CertifiedKey<KeyPair>,
    tls: Tls,
    _folder: TempDir,
}

fn certified() -> Certified {
    let made = generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let folder = TempDir::new().unwrap();
    let (certificate, key) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    Certified { made, tls: Tls { certificate, key }, _folder: folder }
}

impl Certified {
    /// The store at these servers, by their ports for TLS, trusting this certificate and no other.
    fn config(&self, scheme: &str, servers: &[Server], rest: &str) -> Config {
        let mut roots = RootCertStore::empty();
        roots.add(self.made.cert.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider);
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let trust = builder.with_root_certificates(roots).with_no_client_auth();
        let config = Config::parse(&format!("{scheme}://{}{rest}", at(servers))).unwrap();
        config.trust(Arc::new(trust)).timeout(PATIENCE).unwrap()
    }
}

fn at(servers: &[Server]) -> String {
    let port = |server: &Server| format!("127.0.0.1:{}", server.tls_port().unwrap());
    servers.iter().map(port).collect::<Vec<_>>().join(",")
}

/// Charges this key until the store answers.
async fn is_answered(store: &RedisStore, key: u128) {
    let answered = async {
        while store.decide(&plan(key)).await.is_err() {
            sleep(RETRY).await;
        }
    };
    tokio::time::timeout(2 * PATIENCE, answered).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_followed_over_tls() {
    let certified = certified();
    let cluster = Cluster::start_with_tls(&certified.tls).unwrap();
    let config = certified.config("rediss+cluster", &cluster.nodes()[..2], "");
    let (one, other) = (connected(config.clone()).await, connected(config).await);
    for key in 0..20 {
        let tally = charge(&[&one, &other], LIMIT, key).await;
        assert_eq!(tally, Tally { admitted: LIMIT, denied: LIMIT, failed: 0 });
    }
    let ports: Vec<String> =
        cluster.nodes().iter().map(|node| at(std::slice::from_ref(node))).collect();
    let shards = one.health().shards;
    assert_eq!(shards.len(), 3);
    assert!(shards.iter().all(|shard| ports.contains(&shard.address)), "{shards:?}");
    cluster.lose(0).unwrap();
    for key in 100..120 {
        is_answered(&one, key).await;
    }
    reaches(&one, BreakerState::Healthy).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_sentinels_name_is_followed_over_tls() {
    let certified = certified();
    let deployment = Sentinels::start_with_tls(1, &certified.tls).unwrap();
    let rest = format!("/{}", Sentinels::NAME);
    let config = certified.config("rediss+sentinel", deployment.sentinels(), &rest);
    let (one, other) = (connected(config.clone()).await, connected(config).await);
    let tally = charge(&[&one, &other], LIMIT, 1).await;
    assert_eq!(tally, Tally { admitted: LIMIT, denied: LIMIT, failed: 0 });
    deployment.wait_until_in_step().unwrap();
    deployment.fail_over().unwrap();
    is_answered(&one, 2).await;
    reaches(&one, BreakerState::Healthy).await;
    let tally = charge(&[&one], 1, 1).await;
    assert_eq!(tally, Tally { admitted: 0, denied: 1, failed: 0 }, "what was spent was replicated");
}

#[tokio::test]
async fn a_cluster_whose_certificate_nobody_trusts_is_lost_and_says_why() {
    let certified = certified();
    let cluster = Cluster::start_with_tls(&certified.tls).unwrap();
    let url = format!("rediss+cluster://{}", at(&cluster.nodes()[..1]));
    let store = RedisStore::connect(&Config::parse(&url).unwrap());
    let error = store.secret(Duration::from_millis(500)).await.unwrap_err();
    assert!(error.detail.contains("certificate"), "{error}");
}
