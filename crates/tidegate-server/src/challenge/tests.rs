//! Challenges from the first to the pass, and everything that is no pass.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use proptest::prelude::*;
use tidegate::clock::{Clock as _, FakeClock, Now};
use tidegate::engine::{Key, policy::Options};
use tidegate::{Limiter, Policy, Request};

use super::*;

const POLICY: &str = "
tidegate: 1
name: shop
challenge: { kind: proof_of_work, difficulty: 6, pass: 1h }
limits: { all: { by: client, total: 1, exceed: challenge } }
";

/// The same with a service that does not answer.
const CAPTCHA: &str = "
tidegate: 1
name: shop
challenge: { kind: captcha, verify_url: 'http://127.0.0.1:1/', secret_env: KEY, pass: 1h }
limits: { all: { by: client, total: 1, exceed: challenge } }
";

fn parsed(text: &str) -> Policy {
    let env = [("KEY".to_owned(), "hush".to_owned())].into();
    let checked = Policy::check("shop.yaml", text, &Options { profile: None, env });
    checked.unwrap_or_else(|errors| panic!("{errors}")).policy
}

fn app(text: &str) -> App {
    App::new(parsed(text))
}

fn user(name: &'static str) -> Request<'static> {
    Request::new("GET", "/").user(name)
}

fn issue(app: &App, request: &Request<'_>) -> Result<IssuedChallenge, ChallengeError> {
    app.issue_challenge(&app.context(request).unwrap())
}

fn offered(app: &App, request: &Request<'_>) -> IssuedChallenge {
    issue(app, request).unwrap_or_else(|refused| panic!("{refused:?}"))
}

fn has_pass<const N: usize>(app: &App, request: &Request<'_>, presented: [&str; N]) -> bool {
    app.has_valid_pass(&app.context(request).unwrap(), presented)
}

async fn redeemed(
    app: &App,
    request: &Request<'_>,
    token: &str,
    solution: &str,
) -> Result<Pass, ChallengeError> {
    let context = app.context(request).unwrap();
    app.redeem_solution(&context, Solution { token, solution }).await
}

/// What memory answers.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("nothing here waits"),
    }
}

#[tokio::test]
async fn a_solved_challenge_earns_a_pass_for_its_own_client_once() {
    let app = app(POLICY);
    let offer = offered(&app, &user("u1"));
    let solution = proof_of_work::solve(&offer.token, 6);
    let pass = redeemed(&app, &user("u1"), &offer.token, &solution).await.unwrap();
    assert_eq!(pass.lasts, Duration::from_secs(3_600));
    assert!(has_pass(&app, &user("u1"), [pass.token.as_str()]));
    assert!(!has_pass(&app, &user("u2"), [pass.token.as_str()]), "it is nobody else's");
    assert!(has_pass(&app, &user("u1"), ["x", pass.token.as_str()]), "one of several is enough");
    assert!(!has_pass(&app, &user("u1"), [offer.token.as_str()]), "a challenge is no pass");
    assert!(!has_pass(&app, &user("u1"), []));
    let replayed = redeemed(&app, &user("u1"), &offer.token, &solution).await;
    assert_eq!(replayed.unwrap_err(), ChallengeError::Used);
}

#[tokio::test]
async fn what_is_wrong_forged_or_moved_earns_nothing_and_uses_nothing_up() {
    let app = app(POLICY);
    let token = offered(&app, &user("u1")).token;
    let solution = proof_of_work::solve(&token, 6);
    let wrong = (0..).map(|number: u32| number.to_string());
    let wrong =
        wrong.into_iter().find(|number| !proof_of_work::is_solved(&token, number, 6)).unwrap();
    let other = offered(&app, &user("u2")).token;
    let asked = parsed(POLICY).challenge().unwrap().clone();
    let subject = TokenSubject { policy: Key(1), client: Key(2) };
    let pass = app.challenges.sign(TokenKind::Pass, &asked, subject, app.now());
    for (token, solution, expected) in [
        (token.as_str(), wrong.as_str(), ChallengeError::Wrong),
        (token.as_str(), "", ChallengeError::Wrong),
        ("", solution.as_str(), ChallengeError::Token(TokenFault::Forged)),
        (&token[1..], &solution, ChallengeError::Token(TokenFault::Forged)),
        (&"c1.".repeat(100_000), &solution, ChallengeError::Token(TokenFault::Forged)),
        (&pass, &solution, ChallengeError::Token(TokenFault::Forged)),
        (&other, &proof_of_work::solve(&other, 6), ChallengeError::Token(TokenFault::Elsewhere)),
    ] {
        let refused = redeemed(&app, &user("u1"), token, solution).await.unwrap_err();
        assert_eq!(refused, expected, "{token:.20} {solution}");
    }
    assert!(redeemed(&app, &user("u1"), &token, &solution).await.is_ok());
}

#[tokio::test]
async fn challenges_are_counted_by_kind_and_by_what_became_of_them() {
    let counted = |app: &App, kind: &str| {
        let page = app.metrics.render(&crate::telemetry::Present::default());
        ["issued", "solved", "failed", "void"].map(|result| {
            let sample =
                format!("tidegate_challenges_total{{kind=\"{kind}\",result=\"{result}\"}} ");
            let line = page.lines().find_map(|line| line.strip_prefix(&sample)).unwrap();
            line.parse::<u64>().unwrap()
        })
    };
    let works = app(POLICY);
    let token = offered(&works, &user("u1")).token;
    assert!(redeemed(&works, &user("u1"), "c1.x", "1").await.is_err());
    assert!(redeemed(&works, &user("u1"), &token, &proof_of_work::solve(&token, 6)).await.is_ok());
    assert!(redeemed(&works, &user("u1"), &token, &proof_of_work::solve(&token, 6)).await.is_err());
    assert_eq!(counted(&works, "proof_of_work"), [1, 1, 2, 0]);
    assert_eq!(counted(&works, "captcha"), [0; 4]);
    let captchas = app(CAPTCHA);
    let token = offered(&captchas, &user("u1")).token;
    assert!(redeemed(&captchas, &user("u1"), &token, "x").await.is_err(), "nobody judges");
    assert_eq!(counted(&captchas, "captcha"), [1, 0, 0, 1]);
}

#[tokio::test]
async fn a_captcha_is_used_up_by_its_first_answer_whatever_the_service_says() {
    let app = app(CAPTCHA);
    for (solution, first) in [("", ChallengeError::Wrong), ("x", ChallengeError::Unverified)] {
        let token = offered(&app, &user("u1")).token;
        for expected in [first, ChallengeError::Used] {
            let refused = redeemed(&app, &user("u1"), &token, solution).await.unwrap_err();
            assert_eq!(refused, expected, "{solution}");
        }
    }
}

#[tokio::test]
async fn a_captcha_for_which_there_is_no_place_is_not_used_up() {
    let app = app(CAPTCHA);
    let token = offered(&app, &user("u1")).token;
    let client = app.engine.client_keys(&app.context(&user("u1")).unwrap()).unwrap().client_key;
    let places = std::iter::repeat_with(|| app.challenges.verifier.admit(client));
    let taken: Vec<_> = places.map_while(Result::ok).collect();
    let refused = redeemed(&app, &user("u1"), &token, "").await.unwrap_err();
    assert_eq!(refused, ChallengeError::Unverified);
    drop(taken);
    assert_eq!(redeemed(&app, &user("u1"), &token, "").await.unwrap_err(), ChallengeError::Wrong);
}

#[tokio::test]
async fn a_challenge_of_another_policy_or_another_difficulty_is_not_taken() {
    let shop = app(POLICY);
    let bank = app(&POLICY.replace("name: shop", "name: bank"));
    bank.engine.set_hash_key(HashKey::new([1; 16]));
    shop.engine.set_hash_key(HashKey::new([1; 16]));
    let token_of_bank = offered(&bank, &user("u1")).token;
    let moved = redeemed(&shop, &user("u1"), &token_of_bank, "0").await;
    assert_eq!(moved.unwrap_err(), ChallengeError::Token(TokenFault::Elsewhere));
    let easy = app(POLICY);
    let harder = parsed(&POLICY.replace("difficulty: 6", "difficulty: 7"));
    let before = offered(&easy, &user("u1")).token;
    easy.put_in_force(&[harder.into()], crate::notify::Targets::default()).unwrap();
    let stale = redeemed(&easy, &user("u1"), &before, &proof_of_work::solve(&before, 7)).await;
    assert_eq!(stale.unwrap_err(), ChallengeError::Stale);
}

#[tokio::test]
async fn a_pass_is_good_only_for_what_the_policy_asks_for_by_now() {
    let app = app(POLICY);
    let token = offered(&app, &user("u1")).token;
    let solution = proof_of_work::solve(&token, 6);
    let pass = redeemed(&app, &user("u1"), &token, &solution).await.unwrap().token;
    let honoured_by = |policy: &str| {
        app.put_in_force(&[parsed(policy).into()], crate::notify::Targets::default()).unwrap();
        has_pass(&app, &user("u1"), [pass.as_str()])
    };
    assert!(!honoured_by(&POLICY.replace("difficulty: 6", "difficulty: 20")));
    assert!(!honoured_by(CAPTCHA));
    assert!(honoured_by(&POLICY.replace("pass: 1h", "pass: 2h")));
}

#[test]
fn a_pass_lasts_no_longer_than_the_policy_says_by_now() {
    let challenges = Challenges::new(&HashKey::new([3; 16]));
    let long = parsed(POLICY).challenge().unwrap().clone();
    let short = Challenge { pass: Duration::from_secs(1), ..long.clone() };
    let subject = TokenSubject { policy: Key(1), client: Key(2) };
    let after_us = |us: u64| Now { steady_us: us, unix_us: 1_767_603_600_000_000 + us };
    let lasts_us = |given: &Challenge, asked: &Challenge| {
        let pass = challenges.sign(TokenKind::Pass, given, subject, after_us(0));
        let ends = [1_000_000, 3_600_000_000].into_iter();
        let mut ends = ends.filter(|us| !challenges.is_good(asked, subject, &pass, after_us(*us)));
        assert!(challenges.is_good(asked, subject, &pass, after_us(999_999)));
        ends.next()
    };
    assert_eq!(lasts_us(&long, &long), Some(3_600_000_000));
    assert_eq!(lasts_us(&long, &short), Some(1_000_000));
    assert_eq!(lasts_us(&short, &long), Some(1_000_000), "nor than was said when it was given");
}

#[test]
fn a_clock_that_is_set_back_makes_no_pass_last_longer() {
    let challenges = Challenges::new(&HashKey::new([3; 16]));
    let asked = parsed(POLICY).challenge().unwrap().clone();
    let subject = TokenSubject { policy: Key(1), client: Key(2) };
    let clock = FakeClock::at_unix_seconds(1_767_603_600);
    let pass = challenges.sign(TokenKind::Pass, &asked, subject, clock.now());
    let is_good = || challenges.is_good(&asked, subject, &pass, clock.now());
    clock.advance(asked.pass / 2);
    assert!(is_good());
    clock.step_wall_clock(Duration::from_micros(clock.now().unix_us) - asked.pass / 2);
    clock.advance(asked.pass / 2 - Duration::from_micros(1));
    assert!(is_good());
    clock.advance(Duration::from_micros(1));
    assert!(!is_good());
    let fresh = challenges.sign(TokenKind::Pass, &asked, subject, clock.now());
    assert!(challenges.is_good(&asked, subject, &fresh, clock.now()));
}

#[tokio::test]
async fn nobody_in_particular_has_no_challenge_and_neither_has_a_policy_without() {
    let app = app(POLICY);
    let nobody = Request::new("GET", "/");
    assert_eq!(issue(&app, &nobody).err(), Some(ChallengeError::Nobody));
    assert_eq!(redeemed(&app, &nobody, "x", "1").await.unwrap_err(), ChallengeError::Nobody);
    let open = self::app("{ tidegate: 1, name: open }");
    assert_eq!(issue(&open, &user("u1")).err(), Some(ChallengeError::NoChallenges));
    assert!(!has_pass(&open, &user("u1"), ["x"]));
}

#[tokio::test]
async fn nodes_with_one_secret_take_each_others_passes_and_strangers_do_not() {
    let (one, other) = (app(POLICY), app(POLICY));
    for node in [&one, &other] {
        node.engine.set_hash_key(HashKey::new([9; 16]));
        node.challenges.rekey(&HashKey::new([9; 16]));
    }
    let token = offered(&one, &user("u1")).token;
    let solution = proof_of_work::solve(&token, 6);
    let pass = redeemed(&other, &user("u1"), &token, &solution).await.unwrap();
    assert!(has_pass(&one, &user("u1"), [pass.token.as_str()]));
    one.challenges.rekey(&HashKey::new([8; 16]));
    assert!(!has_pass(&one, &user("u1"), [pass.token.as_str()]));
}

#[tokio::test]
async fn a_solution_of_before_another_secret_came_earns_nothing_and_is_no_failure() {
    let app = app(POLICY);
    let token = offered(&app, &user("u1")).token;
    let solution = proof_of_work::solve(&token, 6);
    app.share_secret(&HashKey::new([9; 16]));
    app.engine.set_hash_key(HashKey::new([9; 16]));
    let stale = redeemed(&app, &user("u1"), &token, &solution).await.unwrap_err();
    assert_eq!(stale, ChallengeError::Stale);
    assert!(!stale.is_failure());
    let forged = redeemed(&app, &user("u1"), &token[1..], &solution).await.unwrap_err();
    assert_eq!(forged, ChallengeError::Token(TokenFault::Forged));
}

#[tokio::test]
async fn who_is_blocked_gets_neither_a_challenge_nor_a_pass() {
    let app = app(&format!("{POLICY}block: {{ ips: [192.0.2.0/24] }}\n"));
    let blocked = Request::new("GET", "/").ip([192, 0, 2, 1].into());
    assert_eq!(issue(&app, &blocked).err(), Some(ChallengeError::ShutOut));
    assert_eq!(redeemed(&app, &blocked, "x", "1").await.unwrap_err(), ChallengeError::ShutOut);
    let other = Request::new("GET", "/").ip([198, 51, 100, 1].into());
    assert!(issue(&app, &other).is_ok());
}

#[test]
fn refusals_are_problem_details_with_a_reason() {
    for refused in [
        ChallengeError::NoChallenges,
        ChallengeError::Nobody,
        ChallengeError::ShutOut,
        ChallengeError::Token(TokenFault::Forged),
        ChallengeError::Token(TokenFault::Elsewhere),
        ChallengeError::Token(TokenFault::Expired),
        ChallengeError::Stale,
        ChallengeError::Wrong,
        ChallengeError::Used,
        ChallengeError::Unverified,
    ] {
        let answer = refused.answer();
        assert_eq!(answer.status(), refused.status());
        let body = http_body_util::BodyExt::collect(answer.into_body());
        let body = at_once(body).unwrap().to_bytes();
        let told: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(told["reason"], refused.reason());
        assert_eq!(told["status"], refused.status().as_u16());
    }
}

/// What happens to the clocks between two attempts: time goes on, or somebody sets the wall clock.
fn happenings() -> impl Strategy<Value = Vec<(u64, Option<i64>)>> {
    let step = proptest::option::of(-2_000_000_000_i64..2_000_000_000);
    proptest::collection::vec((0_u64..200_000_000, step), 1..20)
}

proptest! {
    /// However the wall clock is set, a challenge is answered at most once in the time for which it is
    /// remembered, and never once it is over by the farthest that clock has been.
    #[test]
    fn a_challenge_is_answered_once_whatever_the_wall_clock_does(happenings in happenings()) {
        let clock = FakeClock::at_unix_seconds(1_767_603_600);
        let limiter =
            Limiter::builder().policy(parsed(POLICY)).clock(clock.clone()).build().unwrap();
        let challenges = Challenges::new(&HashKey::new([3; 16]));
        let client_keys = limiter.client_keys(&limiter.context(&user("u1")).unwrap()).unwrap();
        let asked = client_keys.policy.challenge().unwrap();
        let began = clock.now();
        let token = challenges.sign(TokenKind::Challenge, asked, token_subject(&client_keys), began);
        let (mut answered, mut ahead_us) = (0, 0);
        for (advance_us, step_us) in happenings {
            clock.advance(Duration::from_micros(advance_us));
            if let Some(step_us) = step_us {
                let now_us = clock.now().unix_us;
                clock.step_wall_clock(Duration::from_micros(now_us.saturating_add_signed(step_us)));
            }
            let now = clock.now();
            if now.steady_us >= began.steady_us + micros(CLAIMED_FOR) {
                break;
            }
            let judged = challenges.open(asked, &client_keys, &token, now);
            ahead_us = ahead_us.max(now.unix_us.saturating_sub(now.steady_us));
            let in_time = now.steady_us + ahead_us < began.unix_us + micros(LASTS);
            prop_assert_eq!(judged.is_ok(), in_time);
            if let Ok(token) = judged {
                let claim = at_once(limiter.claim_once(CLAIMED, token.nonce, CLAIMED_FOR));
                answered += u32::from(claim.is_first);
            }
        }
        prop_assert!(answered <= 1, "{answered} times");
    }
}
