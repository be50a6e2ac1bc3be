//! Numbers of JSON, in one spelling.

use super::all_digits;

/// A JSON number as its shortest exact decimal text, so that `42`, `42.0` and `4.2e1` are one key.
/// Numbers beyond forty zeros keep an exponent; what is not a JSON number is `None`.
#[must_use]
pub fn canonical_number(text: &str) -> Option<String> {
    let (sign, unsigned) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (mantissa, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    if whole.is_empty() || !all_digits(whole) || !all_digits(fraction) {
        return None;
    }
    let places = i64::try_from(fraction.len()).ok()?;
    let exponent = exponent.parse::<i64>().ok()?.checked_sub(places)?;
    let joined = format!("{whole}{fraction}");
    let significant = joined.trim_start_matches('0').trim_end_matches('0');
    if significant.is_empty() {
        return Some("0".to_owned());
    }
    let dropped = joined.len() - joined.trim_end_matches('0').len();
    let exponent = exponent.checked_add(i64::try_from(dropped).ok()?)?;
    Some(format!("{sign}{}", write_decimal(significant, exponent)))
}

/// Digits without zeros around them, times a power of ten, as plain text.
fn write_decimal(digits: &str, exponent: i64) -> String {
    match (usize::try_from(exponent), usize::try_from(exponent.unsigned_abs())) {
        (Ok(zeros), _) if zeros <= 40 => format!("{digits}{}", "0".repeat(zeros)),
        (Err(_), Ok(places)) if places < digits.len() => {
            let (whole, fraction) = digits.split_at(digits.len() - places);
            format!("{whole}.{fraction}")
        }
        (Err(_), Ok(places)) if places <= digits.len() + 40 => {
            format!("0.{}{digits}", "0".repeat(places - digits.len()))
        }
        _ => format!("{digits}e{exponent}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_one_text_however_they_are_written() {
        for text in ["42", "42.0", "4.2e1", "4.2E+1", "4200e-2", "42.000"] {
            assert_eq!(canonical_number(text).as_deref(), Some("42"), "{text}");
        }
        for (text, canonical) in [
            ("0", "0"),
            ("-0.0", "0"),
            ("-1.50", "-1.5"),
            ("734.50", "734.5"),
            ("1e-7", "0.0000001"),
            ("123e-5", "0.00123"),
            ("1e3", "1000"),
            ("1e400", "1e400"),
            ("10e399", "1e400"),
            ("25e-400", "25e-400"),
        ] {
            assert_eq!(canonical_number(text).as_deref(), Some(canonical), "{text}");
        }
        for text in ["", "-", "e5", ".5", "1.2.3", "1e", "1e99999999999999999999", "0x1", "NaN"] {
            assert_eq!(canonical_number(text), None, "{text}");
        }
    }
}
