//! The `response:` section.

use super::*;

#[test]
fn everything() {
    assert_snapshot!(lines(
        "
response:
  headers: none
  message: ''
  body: { limit: {limit}, wait: '{retryafter}', list: ['{Text}', '{text}'] }
  content_type: \"text/plain\\r\\n\"
  add: { 'X A': a, X-B: , X-C: \"c\\0\" }
  jitter: 10
  blocked: { status: 99, body: }
"
    ));
    assert_snapshot!(lines("response: { jitter: 101%, add: [X-A], blocked: 403, headers: [x] }"));
    assert_snapshot!(lines(
        "defaults: { exceed: deny, shadow: 1, consistency: [], on_store_failure: }"
    ));
}
