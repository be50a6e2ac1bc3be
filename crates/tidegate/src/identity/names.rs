//! Names that services take for each other. Where a name is there twice, or only under another
//! spelling, the service may read another value than the one that is counted.

use super::Unreadable;

/// What was found under a name and under the names that services take for it.
pub(super) struct Sightings<T> {
    number: usize,
    exact: Option<T>,
}

impl<T> Sightings<T> {
    pub(super) const fn none() -> Self {
        Self { number: 0, exact: None }
    }

    /// Adds a value. It is `exact` if no service can read it under another name.
    pub(super) fn add(&mut self, is_exact: bool, value: T) {
        self.number += 1;
        self.exact = Some(value).filter(|_| is_exact);
    }

    /// The only value, if there is one.
    pub(super) fn only(self) -> Result<Option<T>, Unreadable> {
        match (self.number, self.exact) {
            (0, _) => Ok(None),
            (1, Some(value)) => Ok(Some(value)),
            (1, None) => Err(Unreadable::Name),
            _ => Err(Unreadable::Ambiguous),
        }
    }
}

/// True for names that differ in nothing but case, as Go and .NET read members: also `ſ` is an `s`.
pub(super) fn differ_in_case_alone(one: &str, other: &str) -> bool {
    folded(one).eq(folded(other))
}

/// True if a service may take a field of this name for the wanted one. PHP ignores spaces before a
/// name, ends it at a NUL, reads `.`, ` ` and an unclosed `[` as `_`; it, Rails and Express read
/// `name[]` and `name[0]` as a list; Spring takes `!name` for a default.
pub(super) fn is_kin(found: &str, wanted: &str) -> bool {
    if found == wanted {
        return true;
    }
    let name = found.split_once('\0').map_or(found, |(name, _)| name);
    let name = name.trim_matches(|c: char| c.is_whitespace() || c == '!');
    let stem = name.split_once('[').map_or(name, |(stem, _)| stem);
    let alike = |name: &str| folded(name).map(underscored).eq(folded(wanted).map(underscored));
    alike(stem) || alike(name)
}

const fn underscored(c: char) -> char {
    match c {
        '.' | ' ' | '[' => '_',
        other => other,
    }
}

fn folded(name: &str) -> impl Iterator<Item = char> {
    name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_some_service_takes_for_each_other_are_kin() {
        for kin in [
            "email",
            "EMAIL",
            "eMail",
            "email[]",
            "email[0]",
            "email[a][b]",
            "Email[",
            " email",
            "email ",
            "email\0x",
            "!email",
        ] {
            assert!(is_kin(kin, "email"), "{kin:?}");
        }
        for kin in ["user.name", "user name", "user[name", "\u{17f}\u{212a}"] {
            let wanted = if kin.starts_with('u') { "user_name" } else { "sk" };
            assert!(is_kin(kin, wanted), "{kin:?}");
        }
        for other in ["emails", "e-mail", "my[email]", "x.email", "", "[]"] {
            assert!(!is_kin(other, "email"), "{other:?}");
        }
        assert!(differ_in_case_alone("\u{17f}e\u{212a}", "SEK"));
        assert!(!differ_in_case_alone("email[]", "email"));
    }

    #[test]
    fn only_one_exact_sighting_is_a_value() {
        let of = |sightings: &[bool]| {
            let mut found = Sightings::none();
            sightings.iter().for_each(|is_exact| found.add(*is_exact, 'v'));
            found.only()
        };
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[true]), Ok(Some('v')));
        assert_eq!(of(&[false]), Err(Unreadable::Name));
        for twice in [[true, true], [true, false], [false, true], [false, false]] {
            assert_eq!(of(&twice), Err(Unreadable::Ambiguous));
        }
    }
}
