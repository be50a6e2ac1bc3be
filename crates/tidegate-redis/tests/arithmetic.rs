//! The script multiplies and divides as whole numbers do, also where doubles would not.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on says so")]

mod server;

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use server::Server;

const LAST: u64 = (1 << 53) - 1;
const TEXT: &str = concat!(
    include_str!("../src/scripts/prelude.lua"),
    include_str!("../src/scripts/arithmetic.lua"),
    "local quotient, rest = muldiv(ARGV[1] + 0, ARGV[2] + 0, ARGV[3] + 0, ARGV[4] + 0)
     return { string.format('%.0f', quotient), string.format('%.0f', rest) }",
);

/// Numbers of every length.
fn number() -> impl Strategy<Value = u64> {
    (0..=LAST, 0..53_u32).prop_map(|(number, bits)| number >> bits)
}

#[test]
fn products_are_divided_exactly() {
    let mut server = Server::start();
    let connection = RefCell::new(server.connect());
    let script = redis::Script::new(TEXT);
    let config = Config { cases: 20_000, failure_persistence: None, ..Config::default() };
    let result = TestRunner::new(config).run(
        &(number(), number(), number(), number().prop_map(|divisor| divisor.max(1))),
        |(a, b, c, d)| {
            let found: (String, String) =
                script.arg(a).arg(b).arg(c).arg(d).invoke(&mut *connection.borrow_mut()).unwrap();
            let sum = u128::from(a) * u128::from(b) + u128::from(c);
            let (quotient, rest) = (sum / u128::from(d), sum % u128::from(d));
            if quotient <= u128::from(LAST) {
                prop_assert_eq!(found, (quotient.to_string(), rest.to_string()));
            } else {
                prop_assert!(found.0.parse::<u128>().unwrap() > u128::from(LAST));
            }
            Ok(())
        },
    );
    if let Err(failure) = result {
        panic!("{failure}");
    }
}
