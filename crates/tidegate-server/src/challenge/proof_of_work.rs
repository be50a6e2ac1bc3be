//! Proof of work: a number whose hash with the challenge begins with enough zero bits.

use sha2::{Digest as _, Sha256};

/// No solution has more digits.
const DIGITS_MAX: usize = 20;

/// True if the SHA-256 of the token, a colon and the solution's decimal digits begins with at least
/// `difficulty` zero bits.
pub(crate) fn is_solved(token: &str, solution: &str, difficulty: u8) -> bool {
    let is_number = (1..=DIGITS_MAX).contains(&solution.len())
        && solution.bytes().all(|byte| byte.is_ascii_digit());
    is_number && zero_bits(token, solution) >= u32::from(difficulty)
}

fn zero_bits(token: &str, solution: &str) -> u32 {
    let hash = Sha256::new().chain_update(token).chain_update(":").chain_update(solution);
    let hash = hash.finalize();
    let zero_bytes = hash.iter().take_while(|byte| **byte == 0).count();
    let further = hash.get(zero_bytes).map_or(0, |byte| byte.leading_zeros());
    u32::try_from(zero_bytes).unwrap_or(u32::MAX).saturating_mul(8).saturating_add(further)
}

/// The first solution.
#[cfg(test)]
pub(crate) fn solve(token: &str, difficulty: u8) -> String {
    let mut numbers = (0_u64..).map(|number| number.to_string());
    numbers.find(|number| is_solved(token, number, difficulty)).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_counted_as_everybody_counts_them() {
        let counted = |solution: &str| {
            let hash = Sha256::digest(format!("abc:{solution}"));
            let bits: String = hash.iter().map(|byte| format!("{byte:08b}")).collect();
            u32::try_from(bits.find('1').unwrap()).unwrap()
        };
        for number in 0..5_000 {
            let solution = number.to_string();
            assert_eq!(zero_bits("abc", &solution), counted(&solution));
        }
    }

    #[test]
    fn a_solution_is_good_up_to_its_own_bits() {
        let solution = solve("abc", 8);
        let bits = u8::try_from(zero_bits("abc", &solution)).unwrap();
        assert!(bits >= 8 && is_solved("abc", &solution, bits));
        assert!(!is_solved("abc", &solution, bits + 1));
        assert!(!is_solved("abd", &solution, 20), "it is of one token only");
    }

    #[test]
    fn what_is_no_number_is_no_solution() {
        for text in ["", "-1", "+1", "1.0", " 1", "1\n", "x", "٣", &"1".repeat(21)] {
            assert!(!is_solved("abc", text, 0), "{text}");
        }
        assert!(is_solved("abc", &"1".repeat(20), 0));
    }
}
