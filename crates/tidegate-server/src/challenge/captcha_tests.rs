//! A stand-in for the service, and everything that can go wrong with it.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::*;

/// A service that answers every question with these bytes, and says what it was asked.
async fn service(answer: String) -> (SocketAddr, tokio::sync::mpsc::UnboundedReceiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (asked, questions) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut text = String::new();
            while !text.contains("remoteip") && !text.ends_with("response=r") {
                let mut bytes = [0; 4096];
                let read = stream.read(&mut bytes).await.unwrap();
                text.push_str(str::from_utf8(&bytes[..read]).unwrap());
            }
            let _ = asked.send(text);
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    (address, questions)
}

fn json(status: &str, body: &str) -> String {
    let length = body.len();
    format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
}

async fn verified(answer: String) -> Result<bool, String> {
    let (address, _questions) = service(answer).await;
    CaptchaVerifier::new()
        .admit(Key(1))
        .unwrap()
        .verify(&format!("http://{address}/siteverify"), "s", "r", None)
        .await
}

#[tokio::test]
async fn the_service_is_asked_in_the_form_that_all_share() {
    let (address, mut questions) = service(json("200 OK", r#"{"success":true,"x":[]}"#)).await;
    let client = Some([192, 0, 2, 1].into());
    let url = format!("http://{address}/siteverify?v=1");
    let told = CaptchaVerifier::new().admit(Key(1)).unwrap().verify(&url, "a&b", "r", client).await;
    assert!(told.unwrap());
    let asked = questions.recv().await.unwrap();
    assert!(asked.starts_with("POST /siteverify?v=1 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.to_lowercase().contains(&format!("host: {address}\r\n")), "{asked}");
    assert!(asked.ends_with("\r\n\r\nsecret=a%26b&response=r&remoteip=192.0.2.1"), "{asked}");
}

#[tokio::test]
async fn only_success_is_success() {
    let no = r#"{"success":false,"error-codes":["invalid-input-response"]}"#;
    assert!(!verified(json("200 OK", no)).await.unwrap());
    assert!(verified(json("200 OK", r#"{"success":true}"#)).await.unwrap());
    for answer in [
        json("200 OK", r#"{"success":"true"}"#),
        json("200 OK", "{}"),
        json("200 OK", "<html>"),
        json("500 Oops", r#"{"success":true}"#),
        json("302 Found\r\nLocation: http://127.0.0.1/", r#"{"success":true}"#),
        "no HTTP".to_owned(),
    ] {
        assert!(verified(answer.clone()).await.is_err(), "{answer}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_to_its_end() {
    let huge = format!("{{\"success\":true,\"x\":\"{}\"}}", "x".repeat(ANSWER_BYTES_MAX));
    assert!(verified(json("200 OK", &huge)).await.is_err());
}

#[tokio::test]
async fn a_service_that_says_nothing_is_not_waited_for_and_holds_no_permit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let verifier = CaptchaVerifier::with_deadline(Duration::from_millis(20));
    assert!(verifier.admit(Key(1)).unwrap().verify(&url, "s", "r", None).await.is_err());
    assert!(verifier.clients().is_empty());
    assert_eq!(verifier.permits.available_permits(), AT_ONCE_MAX);
}

#[tokio::test]
async fn no_more_than_a_few_are_asked_at_once() {
    let verifier = CaptchaVerifier::new();
    let _taken = verifier.permits.acquire_many(u32::try_from(AT_ONCE_MAX).unwrap()).await.unwrap();
    let error = verifier.admit(Key(1)).err().unwrap();
    assert!(error.contains("too many"), "{error}");
}

#[test]
fn one_client_does_not_take_the_permits_of_the_others() {
    let verifier = CaptchaVerifier::new();
    let taken: Vec<_> = (0..AT_ONCE_MAX).map_while(|_| verifier.admit(Key(1)).ok()).collect();
    assert_eq!(taken.len(), AT_ONCE_PER_CLIENT_MAX);
    assert!(verifier.admit(Key(2)).is_ok());
    drop(taken);
    assert!(verifier.admit(Key(1)).is_ok(), "it may come back");
}

#[tokio::test]
async fn what_cannot_be_a_token_is_refused_without_asking() {
    let huge = "x".repeat(RESPONSE_BYTES_MAX + 1);
    for response in ["", &huge] {
        let told = CaptchaVerifier::new()
            .admit(Key(1))
            .unwrap()
            .verify("https://verifier.test/", "s", response, None)
            .await;
        assert!(!told.unwrap());
    }
}

#[tokio::test]
async fn secrets_travel_over_tls_alone_except_on_this_machine() {
    for url in ["http://192.0.2.1/", "http://verifier.test/", "ftp://127.0.0.2.nip.test/", "/x"] {
        let error = CaptchaVerifier::new()
            .admit(Key(1))
            .unwrap()
            .verify(url, "hush", "r", None)
            .await
            .unwrap_err();
        assert!(error.contains("not https"), "{url}: {error}");
        assert!(!error.contains("hush"));
    }
}

#[tokio::test]
async fn a_port_that_is_none_is_refused() {
    let verifier = CaptchaVerifier::new();
    let permit = verifier.admit(Key(1)).unwrap();
    let asked = permit.verify("http://127.0.0.1:99999/", "s", "r", None).await;
    assert!(asked.unwrap_err().contains("a port"));
}
