//! Finds the limit or penalty of a key by the key's name.

use std::collections::BTreeSet;

use crate::active_policy::{ActivePolicies, ActivePolicy};
use crate::key::{self, Key, Piece, RAW_BYTES_MAX, Template, is_plain};
use crate::policy::model::{Algorithm, Limit, Part};
use crate::policy::protection::Penalty;

/// How many hexadecimal digits stand for a part of a template.
const PART_DIGITS: usize = 16;

/// A limit or a penalty in force, as the owner of keys.
#[derive(Clone, Copy)]
pub struct KeyOwner<'p> {
    active: &'p ActivePolicy,
    counter: Counter<'p>,
    family: u64,
}

#[derive(Clone, Copy)]
enum Counter<'p> {
    Limit(&'p Limit),
    Penalty(&'p Penalty),
}

impl ActivePolicies {
    /// All limits and penalties that have keys, policy by policy.
    pub fn key_owners(&self) -> impl Iterator<Item = KeyOwner<'_>> {
        self.policies().iter().flat_map(|active| {
            let limits = active.policy.limits.iter().zip(&active.outlines);
            let keyed = limits.filter(|(limit, _)| limit.algorithm != Algorithm::Ceiling);
            let limits = keyed.map(|(limit, outline)| (Counter::Limit(limit), outline.keys.family));
            let penalties = active.policy.protection.penalties.iter();
            let penalties = penalties.zip(&active.protection.penalties);
            let penalties =
                penalties.map(|(penalty, keys)| (Counter::Penalty(penalty), keys.count.family));
            let counters = limits.chain(penalties);
            counters.map(move |(counter, family)| KeyOwner { active, counter, family })
        })
    }

    /// The limits and penalties that a key may be of, by its name: none, one, or several of one name in
    /// several policies, whose keys only their fingerprints tell apart.
    pub fn owners_of_key(&self, name: &str) -> impl Iterator<Item = KeyOwner<'_>> {
        self.key_owners().filter(move |owner| owner.owns(name))
    }
}

impl<'p> KeyOwner<'p> {
    /// The policy's name.
    #[must_use]
    pub fn policy(&self) -> &'p str {
        &self.active.policy.name
    }

    /// The limit's name, if it is a limit.
    #[must_use]
    pub fn limit(&self) -> Option<&'p str> {
        match self.counter {
            Counter::Limit(limit) => Some(&limit.name),
            Counter::Penalty(_) => None,
        }
    }

    /// The penalty's name, if it is a penalty.
    #[must_use]
    pub fn penalty(&self) -> Option<&'p str> {
        match self.counter {
            Counter::Limit(_) => None,
            Counter::Penalty(penalty) => Some(&penalty.name),
        }
    }

    /// What all its keys share in a store that does not name them.
    #[must_use]
    pub const fn family(&self) -> u64 {
        self.family
    }

    /// What all names of its keys match, as Redis writes patterns; others may match it too.
    #[must_use]
    pub fn pattern(&self) -> String {
        let Some(template) = self.template() else {
            return format!("{}*", escaped(&self.generated_prefix()));
        };
        let piece = |piece: &Piece| match piece {
            Piece::Literal(text) => escaped(text),
            Piece::Part { .. } => "*".to_owned(),
        };
        let row = if self.row().is_some() { "*" } else { "" };
        template.pieces.iter().map(piece).chain([row.to_owned()]).collect()
    }

    /// True if a key of this name can be its own.
    #[must_use]
    pub fn owns(&self, name: &str) -> bool {
        match self.template() {
            Some(template) => self.fills(&template.pieces, name),
            None => self.keys_called(name).is_some(),
        }
    }

    /// A test for the keys of a generated name; `None` for any other name.
    #[must_use]
    pub fn keys_called(&self, name: &str) -> Option<impl Fn(Key) -> bool + use<>> {
        key::called(name.strip_prefix(&*self.generated_prefix())?)
    }

    /// The generated name of a key, for a store that does not name them.
    #[must_use]
    pub fn name_of(&self, key: Key) -> String {
        match self.counter {
            Counter::Limit(limit) => key::generated(limit, key),
            Counter::Penalty(penalty) => key::counted_name(&penalty.name, key).as_ref().to_owned(),
        }
    }

    /// What stands before the fingerprint in a generated name.
    fn generated_prefix(&self) -> String {
        match self.counter {
            Counter::Limit(limit) => format!("{}:", limit.name),
            Counter::Penalty(penalty) => format!("count:{}:", penalty.name),
        }
    }

    const fn template(&self) -> Option<&'p Template> {
        match self.counter {
            Counter::Limit(limit) => limit.key.as_ref(),
            Counter::Penalty(penalty) => penalty.key.as_ref(),
        }
    }

    /// The part whose rows count separately.
    const fn row(&self) -> Option<&'p Part> {
        match self.counter {
            Counter::Limit(limit) => limit.row.as_ref(),
            Counter::Penalty(_) => None,
        }
    }

    /// True if a template can become this name. All ways to read the name are followed at once, so
    /// that no name takes long.
    fn fills(&self, pieces: &[Piece], name: &str) -> bool {
        let mut reached = BTreeSet::from([0]);
        for piece in pieces {
            let further = |at: &usize| {
                let at = *at;
                ends(piece, &name[at..]).into_iter().map(move |length| at + length)
            };
            reached = reached.iter().flat_map(further).collect();
        }
        reached.iter().any(|at| self.is_row(&name[*at..]))
    }

    /// What may stand behind a template: nothing, or the row of a map.
    fn is_row(&self, text: &str) -> bool {
        let row = text.strip_prefix(':');
        text.is_empty()
            || row.is_some_and(|row| match self.row() {
                Some(Part::Tier) => self.active.policy.tiers.id(row).is_some(),
                Some(Part::Row { rows, .. }) => rows.iter().any(|known| known == row),
                _ => false,
            })
    }
}

impl std::fmt::Debug for KeyOwner<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyOwner({}:{})", self.policy(), self.generated_prefix())
    }
}

/// How much of a text a piece of a template can be. All that a part becomes is ASCII.
fn ends(piece: &Piece, text: &str) -> Vec<usize> {
    match piece {
        Piece::Literal(literal) => {
            text.starts_with(&**literal).then_some(literal.len()).into_iter().collect()
        }
        Piece::Part { raw, .. } => {
            let hash = text.get(..PART_DIGITS).filter(|digits| is_hexadecimal(digits));
            let missing = text.starts_with('-').then_some(1);
            let plain = (1..=RAW_BYTES_MAX).filter(|_| *raw);
            let plain = plain.filter(|end| text.get(..*end).is_some_and(is_plain));
            hash.map(str::len).into_iter().chain(missing).chain(plain).collect()
        }
    }
}

fn is_hexadecimal(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

/// A text as a pattern that only it matches.
fn escaped(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len());
    for letter in text.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '^' | '\\') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::HashKey;
    use crate::limiter::Limiter;
    use crate::policy::Policy;
    use crate::request::Request;

    const POLICY: &str = "
tidegate: 1
name: shop
identity: { default_tier: free, anonymous_tier: free }
tiers: [free, pro]
limits:
  plain:   { by: user, total: 1 }
  hashed:  { by: user, total: 1, key: 'rl:{user}' }
  raw:     { by: [user, ip], total: 1, key: 'rl:w*:{user:raw}-{ip}' }
  rows:    { by: ip, total: { free: 1, pro: 2 }, key: 'rows:{ip}' }
events: { told: {} }
penalties:
  counted: { event: told, by: user, within: 1h, ladder: { 2: { ban: 1h } } }
  failed:  { event: told, by: user, within: 1h, ladder: { 2: { ban: 1h } }, key: 'rl:fail:{user:raw}' }
";

    fn limiter() -> Limiter {
        let policy = Policy::parse("shop.yaml", POLICY).unwrap_or_else(|errors| panic!("{errors}"));
        Limiter::builder().policy(policy).hash_key(HashKey::new([3; 16])).build().unwrap()
    }

    fn owner_of(name: &str) -> Option<String> {
        let active_policies = limiter().active_policies();
        let owner = active_policies.owners_of_key(name).next()?;
        owner.limit().or(owner.penalty()).map(str::to_owned)
    }

    #[test]
    fn every_key_is_found_to_be_of_the_limit_that_made_it() {
        let limiter = limiter();
        for user in ["u1", "a-b-c", "-", "-x", "x@y.z", "two words", "ü", &"long".repeat(40)] {
            for tier in ["free", "pro"] {
                let request = Request::default().user(user).ip([192, 0, 2, 1].into()).tier(tier);
                let explained = limiter.explain(&request).unwrap();
                for limit in explained.limits {
                    let name = limit.applies.unwrap().key;
                    assert_eq!(owner_of(&name).as_deref(), Some(&*limit.name), "{name}");
                }
                for penalty in explained.penalties {
                    let name = penalty.applies.unwrap().key;
                    assert_eq!(owner_of(&name).as_deref(), Some(&*penalty.name), "{name}");
                }
            }
        }
    }

    #[test]
    fn what_no_limit_made_is_nobodys() {
        for name in [
            "",
            "plain:abc",
            "plain:0123456789abc!",
            "plain:0123456789abcde",
            "other:0123456789abcd",
            "rl:0123456789abcde",
            "rl:0123456789abcdef:pro",
            "rl:w*:u 1-0123456789abcdef",
            "rows:0123456789abcdef:gold",
            "rows:ü",
        ] {
            assert_eq!(owner_of(name), None, "{name}");
        }
        assert_eq!(owner_of("rows:0123456789abcdef:pro").as_deref(), Some("rows"));
    }

    #[test]
    fn a_long_name_takes_no_time() {
        let text = POLICY.replace("{user:raw}-{ip}", "{user:raw}-{ip:raw}");
        let policy = Policy::parse("shop.yaml", &text).unwrap();
        let limiter = Limiter::new(policy);
        let name = format!("rl:w*:{}!", "-".repeat(100_000));
        assert!(limiter.active_policies().owners_of_key(&name).next().is_none());
    }

    #[test]
    fn patterns_take_names_literally() {
        let active_policies = limiter().active_policies();
        let patterns: Vec<String> =
            active_policies.key_owners().map(|owner| owner.pattern()).collect();
        let expected =
            ["plain:*", "rl:*", r"rl:w\*:*-*", "rows:**", "count:counted:*", "rl:fail:*"];
        assert_eq!(patterns, expected);
    }

    #[test]
    fn a_key_without_a_name_is_called_by_its_hash_and_found_again() {
        let active_policies = limiter().active_policies();
        let owner = active_policies.key_owners().next().unwrap();
        let key = Key(7 << 64 | 5);
        let name = owner.name_of(key);
        let is_called = owner.keys_called(&name).unwrap();
        assert!(is_called(key) && is_called(Key(7 << 64)), "the last bits are left out");
        assert!(!is_called(Key(8 << 64 | 5)));
        assert!(owner.keys_called("plain:").is_none());
    }
}
