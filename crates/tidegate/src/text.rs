//! Appends numbers and JSON strings to a text. Every answer has dozens of them, and `format!` would
//! take longer than the decision.

use crate::units::MICROS;

/// Appends a whole number.
pub fn push_number(text: &mut String, number: u64) {
    text.push_str(itoa::Buffer::new().format(number));
}

/// Appends millionths as the shortest exact decimal: `1`, `0.25`.
pub fn push_decimal(text: &mut String, micros: u64) {
    push_number(text, micros / MICROS);
    let places = micros % MICROS;
    if places > 0 {
        // A one before them keeps the zeros at their front.
        let mut digits = itoa::Buffer::new();
        let digits = digits.format(MICROS + places);
        text.push('.');
        text.push_str(digits[1..].trim_end_matches('0'));
    }
}

/// Appends a name in quotes. The names of policies, tiers, operations, limits and headers hold nothing
/// that JSON or a header would escape.
#[inline]
pub fn push_name(text: &mut String, name: &str) {
    text.push('"');
    text.push_str(name);
    text.push('"');
}

/// Appends a JSON string, quoted.
pub fn push_json(text: &mut String, value: &str) {
    text.push('"');
    push_escaped(text, value);
    text.push('"');
}

/// Appends what stands between the quotes of a JSON string.
pub fn push_escaped(text: &mut String, value: &str) {
    let is_special = |byte: u8| (byte < b' ') | (byte == b'"') | (byte == b'\\');
    // Without an exit the loop is vectorised.
    if !value.bytes().fold(false, |found, byte| found | is_special(byte)) {
        return text.push_str(value);
    }
    let mut written = 0;
    for (index, byte) in value.bytes().enumerate() {
        if !is_special(byte) {
            continue;
        }
        // An escaped character is one byte, so that no character is cut.
        text.push_str(&value[written..index]);
        written = index + 1;
        match byte {
            b'"' => text.push_str("\\\""),
            b'\\' => text.push_str("\\\\"),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            byte => {
                let hex = |digit: u8| char::from(b"0123456789abcdef"[usize::from(digit & 15)]);
                text.push_str("\\u00");
                text.push(hex(byte >> 4));
                text.push(hex(byte));
            }
        }
    }
    text.push_str(&value[written..]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::units::Amount;

    proptest! {
        #[test]
        fn a_json_string_reads_as_what_was_written(value in "(\\PC|[\\x00-\\x7f]){0,20}") {
            let mut text = String::new();
            push_json(&mut text, &value);
            prop_assert_eq!(serde_json::from_str::<String>(&text).unwrap(), value);
        }

        #[test]
        fn a_decimal_reads_as_the_amount_it_was(micros in 0..=Amount::MAX.micros()) {
            let mut text = String::new();
            push_decimal(&mut text, micros);
            prop_assert_eq!(Amount::parse(&text).unwrap().micros(), micros);
            prop_assert!(text.len() == 1 || !text.ends_with('.'));
            prop_assert!(!text.contains('.') || !text.ends_with('0'));
        }
    }
}
