//! Clients that speak HTTP/2, and upstreams that speak TLS.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::world::{OPEN, World, echo, hyper_upstream, raw_upstream};
use crate::tls::Trust;
use crate::wire::gateway::{GatewayBounds, Upstream};
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};

async fn ask(world: &World, request: Request<Full<Bytes>>) -> Response<String> {
    let socket = TokioIo::new(world.connect().await);
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), socket).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let (parts, body) = sender.send_request(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, String::from_utf8(body.to_vec()).unwrap())
}

#[tokio::test]
async fn authority_becomes_host_and_cookies_one_line() {
    let world = World::start(OPEN, echo().await.0).await;
    let request = Request::post("http://b.test/x/../y?q")
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Full::from("hello"))
        .unwrap();
    let answer = ask(&world, request).await;
    assert_eq!(answer.version(), Version::HTTP_2);
    let echoed = answer.body();
    assert!(echoed.starts_with("POST /y?q HTTP/1.1\n"), "{echoed}");
    for line in
        ["host: b.test\n", "cookie: a=1; b=2\n", "x-forwarded-host: b.test\n", "body: hello"]
    {
        assert!(echoed.contains(line), "{line}: {echoed}");
    }
}

#[tokio::test]
async fn answers_bring_no_connection_headers() {
    let upstream = hyper_upstream(|_| async {
        let answer = Response::builder().header("connection", "x-hop").header("x-hop", "1");
        answer.header("keep-alive", "timeout=5").body(Full::from("ok")).unwrap()
    });
    let world = World::start(OPEN, upstream.await).await;
    let answer = ask(&world, Request::get("http://b.test/").body(Full::default()).unwrap()).await;
    assert_eq!(answer.body(), "ok");
    for gone in ["connection", "keep-alive", "x-hop", "transfer-encoding"] {
        assert!(!answer.headers().contains_key(gone), "{gone}");
    }
}

#[tokio::test]
async fn an_answer_that_is_held_back_for_longer_than_clients_may_take_is_whole() {
    let policy = "{ tidegate: 1, name: p, events: { failure: { status: [401] } },
        penalties: { slow: { event: failure, by: ip, within: 1h, ladder: { 1: { delay: 1s } } } } }";
    let upstream = hyper_upstream(|_| async {
        let answer = Response::builder().status(401);
        answer.body(Full::from("x".repeat(500_000))).unwrap()
    });
    let bounds = GatewayBounds { body: Duration::from_millis(400), ..GatewayBounds::default() };
    let world = World::bounded(policy, upstream.await, bounds).await;
    let answer = ask(&world, Request::get("http://b.test/").body(Full::default()).unwrap()).await;
    assert_eq!((answer.status().as_u16(), answer.body().len()), (401, 500_000));
}

#[tokio::test]
async fn two_lengths_are_refused_even_if_they_are_equal() {
    let (upstream, hits) = echo().await;
    let world = World::start(OPEN, upstream).await;
    let request = Request::post("http://b.test/");
    let request = request.header("content-length", "5").header("content-length", "5");
    assert_eq!(ask(&world, request.body(Full::from("hello")).unwrap()).await.status(), 400);
    assert_eq!(hits.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_authority_and_a_host_that_disagree_are_refused() {
    let world = World::start(OPEN, echo().await.0).await;
    let request = Request::get("http://b.test/").header("host", "c.test");
    let answer = ask(&world, request.body(Full::default()).unwrap()).await;
    assert_eq!(answer.status(), 400);
}

#[tokio::test]
async fn an_upstream_may_speak_tls_and_must_prove_its_name() {
    let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let provider = || Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let server = rustls::ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(server));
    let upstream = raw_upstream(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = service_fn(|_| async {
                Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("secret")))
            });
            let http1 = hyper::server::conn::http1::Builder::new();
            drop(http1.serve_connection(TokioIo::new(stream), service).await);
        }
    })
    .await;
    let url = format!("https://localhost:{}", upstream.port());
    let stranger = Upstream::parse(&url).unwrap();
    let world = World::in_front_of(OPEN, stranger, GatewayBounds::default()).await;
    assert!(world.get("/", "").await.starts_with("HTTP/1.1 502"));

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), made.cert.pem()).unwrap();
    let known = Upstream::with_roots(&url, Some(Trust::load(Some(file.path())).unwrap())).unwrap();
    let world = World::in_front_of(OPEN, known, GatewayBounds::default()).await;
    assert!(world.get("/", "").await.ends_with("secret"));
}

#[tokio::test]
async fn a_head_of_too_many_lines_is_refused_and_cookies_are_one_line() {
    let world = World::start(OPEN, echo().await.0).await;
    let with = |name: &'static str, lines: usize| {
        let get = Request::get("http://b.test/");
        (0..lines).fold(get, |get, _| get.header(name, "1")).body(Full::default()).unwrap()
    };
    let refused = ask(&world, with("x-own", 101)).await;
    assert_eq!(refused.status(), 431);
    // The upstream would refuse it too, in other words.
    assert!(refused.body().contains("too many lines"), "{refused:?}");
    assert_eq!(ask(&world, with("x-own", 90)).await.status(), 200);
    assert_eq!(ask(&world, with("cookie", 150)).await.status(), 200);
}
