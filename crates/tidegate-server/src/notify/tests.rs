//! Webhooks that are real servers on this host, by names that lead where the test wants.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use tidegate::engine::marks::Subject;
use tidegate::engine::policy::Webhook;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::http_client::{Resolution, Resolver};
use crate::tls::Trust;

const OK: &str = "HTTP/1.1 204 No Content\r\n\r\n";
const BUSY: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// A server that notes what it is told, and answers by a script; its last answer holds on.
struct Hook {
    address: SocketAddr,
    heard: Arc<Mutex<Vec<String>>>,
}

impl Hook {
    async fn answering(answers: &[&str]) -> Self {
        Self::start(answers, None).await
    }

    async fn start(answers: &[&str], tls: Option<TlsAcceptor>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, heard) =
            (listener.local_addr().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let mut answers: VecDeque<String> = answers.iter().map(|&text| text.to_owned()).collect();
        let hears = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let answer =
                    if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
                let (hears, tls) = (Arc::clone(&hears), tls.clone());
                tokio::spawn(async move {
                    let answer = answer.unwrap_or_default();
                    match tls {
                        None => serve(stream, &hears, &answer).await,
                        Some(tls) => match tls.accept(stream).await {
                            Ok(stream) => serve(stream, &hears, &answer).await,
                            Err(_) => Ok(()),
                        },
                    }
                });
            }
        });
        Self { address, heard }
    }

    fn heard(&self) -> Vec<String> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn serve<T>(mut stream: T, hears: &Mutex<Vec<String>>, answer: &str) -> io::Result<()>
where
    T: AsyncRead + AsyncWrite + Unpin,
{
    let mut request = Vec::new();
    // Bodies are JSON objects, and end with one.
    while !request.ends_with(b"}") {
        let mut piece = [0; 1024];
        match stream.read(&mut piece).await? {
            0 => break,
            bytes => request.extend_from_slice(&piece[..bytes]),
        }
    }
    hears.lock().unwrap().push(String::from_utf8(request).unwrap());
    if answer == "never" {
        return std::future::pending().await;
    }
    stream.write_all(answer.as_bytes()).await?;
    while answer.contains("Content-Length: 9") {
        stream.write_all(&[b'x'; 4096]).await?;
    }
    stream.shutdown().await
}

/// Names lead to these addresses, one list after the other; the last holds on.
struct Script(Mutex<VecDeque<Vec<SocketAddr>>>);

impl Resolver for Script {
    fn resolve<'r>(&'r self, _: &'r str, _: u16) -> Resolution<'r> {
        let mut answers = self.0.lock().unwrap();
        let answer = if answers.len() > 1 { answers.pop_front() } else { answers.front().cloned() };
        Box::pin(async move { Ok(answer.unwrap_or_default()) })
    }
}

/// A notifier that may tell loopback, with names that lead where the lists say.
fn notifier(trust: Arc<Trust>, allowed: &[&str], answers: Vec<Vec<SocketAddr>>) -> Notifier {
    let allowed = allowed.iter().map(|network| Networks::parse_net(network).unwrap());
    let filter = AddressFilter::Public { besides: allowed.collect() };
    let resolver = Box::new(Script(Mutex::new(answers.into())));
    let client = HttpClient::new(filter, ATTEMPT_TIMEOUT, ANSWER_BYTES_MAX).with(resolver, trust);
    Notifier::with(client, SystemClock::new(), Drain::new())
}

fn well_known() -> Arc<Trust> {
    Trust::load(None).unwrap()
}

fn on_loopback(hook: &Hook) -> Notifier {
    let notifier = notifier(well_known(), &["127.0.0.0/8"], vec![vec![hook.address]]);
    load(&notifier, "http://hooks.test/a?b=c");
    notifier
}

fn load(notifier: &Notifier, url: &str) {
    let secret = Some("s3cret".to_owned());
    let (name, url) = ("security".to_owned(), url.to_owned());
    let webhook = Webhook { name, url, secret, identities: false, body: None };
    let target = Target::new(&webhook, &notifier.shared.client.filter).unwrap();
    let key = ("shop".to_owned(), "security".to_owned());
    notifier.replace_targets(Targets([(key, Arc::new(target))].into()));
}

fn tell(notifier: &Notifier) {
    let notice = Notice {
        policy: "shop".to_owned(),
        webhook: "security".to_owned(),
        source: "brute-force".to_owned(),
        subject: Subject::part("email", "jane@example.com"),
        action: "ban",
        count: 11,
        until_unix_us: None,
        at_unix_us: 0,
    };
    notifier.send(&notice, |_| vec![("email".to_owned(), "6f1c".to_owned())]);
}

/// Tells one thing, and waits until its message has ended.
async fn told(notifier: &Notifier) -> NoticeCounts {
    tell(notifier);
    notifier.finish(Duration::from_secs(60)).await;
    notifier.counts()
}

fn header<'h>(request: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = request.lines().filter_map(|line| line.split_once(": "));
    lines.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value)
}

#[tokio::test]
async fn a_message_is_posted_with_its_id_and_signature() {
    let hook = Hook::answering(&[OK]).await;
    let counts = told(&on_loopback(&hook)).await;
    assert_eq!(counts, NoticeCounts { delivered: 1, ..NoticeCounts::default() });
    let [request] = &hook.heard()[..] else { panic!("{:?}", hook.heard()) };
    assert!(request.starts_with("POST /a?b=c HTTP/1.1\r\n"), "{request}");
    assert_eq!(header(request, "host"), Some("hooks.test"));
    assert_eq!(header(request, "content-type"), Some("application/json"));
    let body = request.split("\r\n\r\n").nth(1).unwrap();
    let id = header(request, "tidegate-delivery").unwrap();
    assert!(body.starts_with(&format!("{{\"id\":\"{id}\"")), "{request}");
    let signature = header(request, "tidegate-signature").unwrap();
    let unix_s = signature.split(['=', ',']).nth(1).unwrap().parse().unwrap();
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, b"s3cret");
    let message = Message { id: id.to_owned(), body: body.to_owned().into() };
    assert_eq!(signature, message.signature(&key, unix_s));
}

#[tokio::test]
async fn what_was_not_delivered_is_sent_again_with_the_same_id() {
    let hook = Hook::answering(&[BUSY, OK]).await;
    let counts = told(&on_loopback(&hook)).await;
    assert_eq!(counts, NoticeCounts { delivered: 1, retries: 1, ..NoticeCounts::default() });
    let heard = hook.heard();
    let ids: Vec<_> = heard.iter().map(|request| header(request, "tidegate-delivery")).collect();
    assert_eq!(ids.len(), 2);
    assert_eq!(ids[0], ids[1]);
}

#[tokio::test]
async fn redirects_and_refusals_end_a_message() {
    let elsewhere = Hook::answering(&[OK]).await;
    let redirect = format!(
        "HTTP/1.1 307 Temporary Redirect\r\nLocation: http://{}/\r\nContent-Length: 0\r\n\r\n",
        elsewhere.address
    );
    for answer in [&*redirect, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"] {
        let hook = Hook::answering(&[answer]).await;
        let counts = told(&on_loopback(&hook)).await;
        assert_eq!(counts, NoticeCounts { failed: 1, ..NoticeCounts::default() });
        assert_eq!(hook.heard().len(), 1);
    }
    assert_eq!(elsewhere.heard().len(), 0);
}

#[tokio::test]
async fn names_that_lead_to_private_places_are_not_told() {
    let hook = Hook::answering(&[OK]).await;
    let private = SocketAddr::new(IpAddr::from([10, 0, 0, 1]), 80);
    for (allowed, addresses) in [
        (&[][..], vec![hook.address]),
        (&["127.0.0.0/8"][..], vec![hook.address, private]),
        (&["127.0.0.0/8"][..], vec![private, hook.address]),
    ] {
        let notifier = notifier(well_known(), allowed, vec![addresses]);
        load(&notifier, "http://hooks.test/");
        let counts = told(&notifier).await;
        assert_eq!(counts, NoticeCounts { refused: 1, ..NoticeCounts::default() });
    }
    assert_eq!(hook.heard().len(), 0);
}

#[tokio::test]
async fn a_name_that_leads_elsewhere_once_it_is_checked_gains_nothing() {
    let hook = Hook::answering(&[BUSY]).await;
    let inside = Hook::answering(&[OK]).await;
    // What is asked once more after the check would lead inside.
    let answers = vec![vec![hook.address], vec!["10.0.0.1:80".parse().unwrap(), inside.address]];
    let notifier = notifier(well_known(), &["127.0.0.0/8"], answers);
    load(&notifier, "http://hooks.test/");
    let counts = told(&notifier).await;
    assert_eq!(counts, NoticeCounts { refused: 1, retries: 1, ..NoticeCounts::default() });
    assert_eq!((hook.heard().len(), inside.heard().len()), (1, 0));
}

#[tokio::test]
async fn what_finds_no_place_is_dropped_at_once_and_counted() {
    let hook = Hook::answering(&["never"]).await;
    let notifier = on_loopback(&hook);
    for _ in 0..QUEUE_MAX + 3 {
        tell(&notifier);
    }
    let counts = notifier.counts();
    assert_eq!((counts.dropped, counts.waiting), (3, QUEUE_MAX as usize));
}

#[tokio::test]
async fn a_webhook_that_stays_as_it_was_keeps_its_places_over_a_reload() {
    let hook = Hook::answering(&["never"]).await;
    let notifier = on_loopback(&hook);
    tell(&notifier);
    load(&notifier, "http://hooks.test/a?b=c");
    assert_eq!(notifier.counts().waiting, 1);
    load(&notifier, "http://hooks.test/other");
    assert_eq!(notifier.counts().waiting, 0);
}

#[tokio::test]
async fn while_policies_are_replaced_webhooks_of_both_are_told() {
    let hook = Hook::answering(&[OK]).await;
    let notifier = on_loopback(&hook);
    let known = Targets::clone(&notifier.shared.targets.load());
    let [security] = &known.0.values().collect::<Vec<_>>()[..] else {
        panic!("{} webhooks", known.0.len())
    };
    let new = [(("shop".to_owned(), "new".to_owned()), Arc::clone(security))];
    let names = |notifier: &Notifier| {
        let targets = notifier.shared.targets.load();
        let told = |name: &&str| targets.get("shop", name).is_some();
        ["security", "new"].iter().filter(|name| told(name)).copied().collect::<Vec<_>>()
    };
    let before = notifier.add_targets(Targets(new.clone().into()));
    assert_eq!(names(&notifier), ["security", "new"]);
    notifier.replace_targets(Targets(new.into()));
    assert_eq!(names(&notifier), ["new"]);
    notifier.replace_targets(before);
    assert_eq!(names(&notifier), ["security"]);
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let endless = "HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n";
    let hook = Hook::answering(&[endless]).await;
    assert_eq!(told(&on_loopback(&hook)).await.delivered, 1);
}

#[tokio::test]
async fn before_the_end_there_is_one_last_attempt() {
    let hook = Hook::answering(&[BUSY]).await;
    let notifier = on_loopback(&hook);
    tell(&notifier);
    while notifier.counts().retries == 0 {
        tokio::task::yield_now().await;
    }
    notifier.shared.drain.start();
    notifier.finish(Duration::from_secs(60)).await;
    assert_eq!((notifier.counts().failed, hook.heard().len()), (1, 2));
}

#[tokio::test]
async fn a_policy_that_is_no_longer_in_force_tells_nobody() {
    let hook = Hook::answering(&[OK]).await;
    let notifier = on_loopback(&hook);
    notifier.replace_targets(Targets::default());
    assert_eq!(told(&notifier).await.dropped, 1);
}

/// A server's side of TLS for a name, and the file of the authority that vouches for it.
fn certified(name: &str) -> (TlsAcceptor, tempfile::NamedTempFile) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new([name.to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), authority.pem()).unwrap();
    (TlsAcceptor::from(Arc::new(config)), file)
}

#[tokio::test]
async fn a_certificate_must_be_of_the_name_in_the_url() {
    for (named, delivered) in [("hooks.test", 1), ("other.test", 0)] {
        let (acceptor, authority) = certified(named);
        let hook = Hook::start(&[OK], Some(acceptor)).await;
        let trust = Trust::load(Some(authority.path())).unwrap();
        let notifier = notifier(trust, &["127.0.0.1"], vec![vec![hook.address]]);
        load(&notifier, "https://hooks.test/");
        // The first attempt is the last.
        notifier.shared.drain.start();
        let counts = told(&notifier).await;
        assert_eq!((counts.delivered, counts.failed), (delivered, 1 - delivered), "{named}");
        assert_eq!(hook.heard().len() as u64, delivered);
    }
}
