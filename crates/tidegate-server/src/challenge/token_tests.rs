//! Tokens that were forged, spliced, moved, mangled or kept too long.

use proptest::prelude::*;

use super::*;

const NOW_US: u64 = 1_767_603_600_000_000;
const MINUTE_US: u64 = 60_000_000;

fn signer() -> TokenSigner {
    TokenSigner::new(&HashKey::new([7; 16]))
}

const fn token_subject(policy: u128, client: u128) -> TokenSubject {
    TokenSubject { policy: Key(policy), client: Key(client) }
}

fn token() -> Token {
    Token {
        subject: token_subject(11, 12),
        difficulty: 18,
        issued_us: NOW_US,
        expires_us: NOW_US + 10 * MINUTE_US,
        nonce: 99,
    }
}

fn opened(text: &str) -> Result<Token, TokenFault> {
    signer().open(TokenKind::Challenge, text, token_subject(11, 12), NOW_US)
}

#[test]
fn a_token_is_opened_by_whoever_has_the_secret_and_by_nobody_else() {
    let text = signer().sign(TokenKind::Challenge, &token());
    assert_eq!(opened(&text), Ok(token()));
    let stranger = TokenSigner::new(&HashKey::new([8; 16]));
    let refused = stranger.open(TokenKind::Challenge, &text, token_subject(11, 12), NOW_US);
    assert_eq!(refused, Err(TokenFault::Forged));
}

#[test]
fn a_challenge_is_no_pass_and_a_pass_is_no_challenge() {
    for (made, asked) in
        [(TokenKind::Challenge, TokenKind::Pass), (TokenKind::Pass, TokenKind::Challenge)]
    {
        let text = signer().sign(made, &token());
        let refused = signer().open(asked, &text, token_subject(11, 12), NOW_US);
        assert_eq!(refused, Err(TokenFault::Forged), "{made:?}");
        let renamed = format!("{}{}", asked.version(), &text[2..]);
        let refused = signer().open(asked, &renamed, token_subject(11, 12), NOW_US);
        assert_eq!(refused, Err(TokenFault::Forged), "{made:?} renamed");
    }
}

#[test]
fn a_token_moved_to_another_client_or_policy_is_not_honoured() {
    let text = signer().sign(TokenKind::Pass, &token());
    for other in
        [token_subject(11, 13), token_subject(10, 12), token_subject(12, 11), token_subject(0, 0)]
    {
        let refused = signer().open(TokenKind::Pass, &text, other, NOW_US);
        assert_eq!(refused, Err(TokenFault::Elsewhere), "{other:?}");
    }
}

#[test]
fn fields_of_two_tokens_cannot_be_spliced() {
    let easy = Token { difficulty: 1, nonce: 5, ..token() };
    let late = Token { expires_us: u64::MAX, issued_us: 0, ..token() };
    let texts = [token(), easy, late].map(|one| signer().sign(TokenKind::Challenge, &one));
    for a in &texts {
        for b in texts.iter().filter(|b| *b != a) {
            let (a, b): (Vec<&str>, Vec<&str>) = (a.split('.').collect(), b.split('.').collect());
            for at in 0..a.len() {
                let mut spliced = a.clone();
                spliced[at] = b[at];
                if spliced != a && spliced != b {
                    assert_eq!(opened(&spliced.join(".")), Err(TokenFault::Forged), "field {at}");
                }
            }
        }
    }
}

#[test]
fn dots_cannot_be_moved_from_one_field_to_the_next() {
    let text = signer().sign(TokenKind::Challenge, &token());
    let dots: Vec<usize> = text.match_indices('.').map(|(at, _)| at).collect();
    for at in dots {
        for moved in [at - 1, at + 1] {
            let mut bytes = text.clone().into_bytes();
            bytes.swap(at, moved);
            assert_eq!(opened(&String::from_utf8(bytes).unwrap()), Err(TokenFault::Forged), "{at}");
        }
    }
}

#[test]
fn a_token_lasts_until_it_expires_and_not_a_microsecond_longer() {
    let text = signer().sign(TokenKind::Pass, &token());
    let at = |now_us| signer().open(TokenKind::Pass, &text, token_subject(11, 12), now_us).is_ok();
    assert!(at(NOW_US) && at(token().expires_us - 1));
    assert!(!at(token().expires_us) && !at(u64::MAX));
}

#[test]
fn a_clock_that_was_set_back_makes_no_token_last_longer() {
    let text = signer().sign(TokenKind::Pass, &token());
    let at = |now_us| signer().open(TokenKind::Pass, &text, token_subject(11, 12), now_us);
    assert!(at(NOW_US - SKEW_US).is_ok(), "nodes may be so far apart");
    assert_eq!(at(NOW_US - SKEW_US - 1), Err(TokenFault::Expired));
    assert_eq!(at(0), Err(TokenFault::Expired));
}

#[test]
fn what_is_no_token_is_forged_however_long_it_is() {
    let text = signer().sign(TokenKind::Challenge, &token());
    assert!(text.len() < TOKEN_BYTES_MAX);
    let huge = "1".repeat(1 << 20);
    let dots = ".".repeat(10_000);
    let longer = format!("{text}0");
    let padded = format!("{}{text}", "0".repeat(200));
    let upper = text.to_uppercase();
    for text in
        ["", ".", "c1", "c1........", "ü.ü", &huge, &dots, &longer, &padded, &upper, &text[1..]]
    {
        assert_eq!(opened(text), Err(TokenFault::Forged), "{:.40}", text);
    }
}

#[test]
fn the_longest_token_fits() {
    let most = Token {
        subject: token_subject(u128::MAX, u128::MAX),
        difficulty: u8::MAX,
        issued_us: u64::MAX,
        expires_us: u64::MAX,
        nonce: u128::MAX,
    };
    let text = signer().sign(TokenKind::Challenge, &most);
    assert!(text.len() <= TOKEN_BYTES_MAX, "{}", text.len());
    assert_eq!(signer().read(TokenKind::Challenge, &text), Some(most));
}

proptest! {
    #[test]
    fn whatever_is_signed_is_read_back(
        policy: u128, client: u128, difficulty: u8, issued_us: u64, expires_us: u64, nonce: u128,
    ) {
        let subject = token_subject(policy, client);
        let token = Token { subject, difficulty, issued_us, expires_us, nonce };
        for kind in [TokenKind::Challenge, TokenKind::Pass] {
            prop_assert_eq!(signer().read(kind, &signer().sign(kind, &token)), Some(token));
        }
    }

    #[test]
    fn any_changed_byte_breaks_the_signature(at in 0_usize..300, to: u8) {
        let mut bytes = signer().sign(TokenKind::Challenge, &token()).into_bytes();
        let at = at % bytes.len();
        prop_assume!(bytes[at] != to);
        bytes[at] = to;
        let text = String::from_utf8_lossy(&bytes);
        prop_assert_eq!(opened(&text), Err(TokenFault::Forged));
    }

    #[test]
    fn any_text_is_refused_without_a_panic(text in ".{0,400}") {
        prop_assert_eq!(opened(&text), Err(TokenFault::Forged));
    }

    /// However a wall clock is set, a token is honoured for at most its own time by that clock, from
    /// a little before it was issued.
    #[test]
    fn a_token_is_honoured_only_within_its_own_time(now_us: u64) {
        let text = signer().sign(TokenKind::Pass, &token());
        let honoured = signer().open(TokenKind::Pass, &text, token_subject(11, 12), now_us).is_ok();
        let within = (NOW_US - SKEW_US..token().expires_us).contains(&now_us);
        prop_assert_eq!(honoured, within);
    }
}

#[test]
fn the_clock_follows_the_wall_clock_forward_and_never_goes_back() {
    let clock = MonotonicWallClock::default();
    let at = |steady_us, unix_us| clock.at_us(Now { steady_us, unix_us });
    assert_eq!([at(100, 1_000), at(110, 1_010)], [1_000, 1_010]);
    assert_eq!(at(120, 5_000), 5_000, "set forward");
    assert_eq!([at(130, 1_030), at(140, 0)], [5_010, 5_020], "set back");
    assert_eq!(at(150, 6_000), 6_000);
}
