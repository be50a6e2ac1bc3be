//! The names of all keys and channels.
//!
//! All begin with the deployment's prefix. States have the names that plans carry, so that operators find
//! them. The deployment's own keys have a `@` behind the prefix, which no state has.

use std::borrow::Cow;
use std::sync::Arc;

use tidegate::engine::plan::Level;

/// The key of a level's state.
pub(crate) fn state(prefix: &str, name: Option<&Arc<str>>, level: &Level) -> Vec<u8> {
    named(prefix, &state_name(name, level))
}

/// The name of a level's state: as the plan names it, or made of the level's numbers.
pub(crate) fn state_name<'n>(name: Option<&'n Arc<str>>, level: &Level) -> Cow<'n, str> {
    match name {
        Some(name) => Cow::Borrowed(name),
        None => Cow::Owned(format!("{:016x}:{}", level.family, level.key)),
    }
}

/// What the names of the deployment's own keys begin with. In a cluster they lie in one slot.
pub(crate) fn own_prefix(prefix: &str, is_sharded: bool) -> String {
    let tag = if is_sharded { "{all}" } else { "" };
    format!("{prefix}@{tag}")
}

/// The key of a state of this name.
pub(crate) fn named(prefix: &str, name: &str) -> Vec<u8> {
    // A template can make any name.
    let escape = if name.starts_with('@') { "@" } else { "" };
    [prefix, escape, name].concat().into_bytes()
}

/// The name of the state in a key; `None` for other keys.
pub(crate) fn name_in<'k>(prefix: &str, key: &'k [u8]) -> Option<&'k str> {
    let name = std::str::from_utf8(key.strip_prefix(prefix.as_bytes())?).ok()?;
    match name.strip_prefix('@') {
        Some(escaped) => Some(escaped).filter(|name| name.starts_with('@')),
        None => Some(name),
    }
}

/// The secret that all nodes hash keys with.
pub(crate) fn secret(own_prefix: &str) -> Vec<u8> {
    format!("{own_prefix}secret").into_bytes()
}

/// The nodes that are alive, by when they last said so.
pub(crate) fn heartbeats(own_prefix: &str) -> Vec<u8> {
    format!("{own_prefix}nodes").into_bytes()
}

/// The last reply under an idempotency key.
pub(crate) fn idempotency(prefix: &str, name: &str) -> Vec<u8> {
    format!("{prefix}@lane:{name}").into_bytes()
}

/// The channel of invalidations.
pub(crate) fn changes(prefix: &str) -> Vec<u8> {
    format!("{prefix}@changes").into_bytes()
}

/// The replicated marks: five keys, in the order of the scripts' KEYS.
pub(crate) fn marks(own_prefix: &str) -> [Vec<u8>; 5] {
    ["head", "values", "changes", "ends", "loads"]
        .map(|what| format!("{own_prefix}marks:{what}").into_bytes())
}

/// The channel that tells of changed marks.
pub(crate) fn marks_changed(prefix: &str) -> Vec<u8> {
    format!("{prefix}@marks").into_bytes()
}

#[cfg(test)]
mod tests {
    use tidegate::Amount;
    use tidegate::engine::Key;
    use tidegate::engine::algorithm::{Spec, total};
    use tidegate::engine::plan::Enforcement;
    use tidegate::engine::policy::OnStoreFailure;

    use super::*;

    const LEVEL: Level = Level {
        limit: 0,
        family: 10,
        key: Key(11),
        spec: Spec::Total(total::Spec { limit: Amount::ONE }),
        cost: Amount::ONE,
        refundable: false,
        reserved: false,
        leased: false,
        enforcement: Enforcement::Reject,
        on_store_failure: OnStoreFailure::Local,
    };

    #[test]
    fn states_are_called_by_their_names() {
        let name: Arc<str> = "rl:deals:w:7".into();
        assert_eq!(state("tg:", Some(&name), &LEVEL), b"tg:rl:deals:w:7");
        let numbers = state("tg:", None, &LEVEL);
        assert_eq!(numbers, b"tg:000000000000000a:0000000000000000000000000000000b");
    }

    #[test]
    fn a_name_is_found_in_its_key_and_in_no_other() {
        for name in ["rl:deals:w:7", "@secret", "@@", "", "ü"] {
            assert_eq!(name_in("tg:", &named("tg:", name)), Some(name));
        }
        for key in [&b"tg:@secret"[..], b"tg:@nodes", b"tg", b"other:a", b"tg:\xff"] {
            assert_eq!(name_in("tg:", key), None);
        }
    }

    #[test]
    fn no_state_can_be_called_like_the_deployments_own() {
        for own in [own_prefix("tg:", false), own_prefix("tg:", true)] {
            for own in [secret(&own), heartbeats(&own), idempotency("tg:", "1"), changes("tg:")] {
                let name: Arc<str> = std::str::from_utf8(&own["tg:".len()..]).unwrap().into();
                assert_ne!(state("tg:", Some(&name), &LEVEL), own);
            }
        }
    }

    #[test]
    fn the_deployments_own_lie_in_one_slot_of_a_cluster() {
        for own in [own_prefix("tg:", true), own_prefix("tg:{one}", false)] {
            assert_eq!(crate::slot::of(&secret(&own)), crate::slot::of(&heartbeats(&own)), "{own}");
            for key in marks(&own) {
                assert_eq!(crate::slot::of(&secret(&own)), crate::slot::of(&key), "{own}");
            }
        }
    }
}
