//! What things are called in the server.
//!
//! Everything begins with the deployment's prefix. States are called by the names that plans carry,
//! so that operators find them; what belongs to the deployment as a whole has names that no state
//! can have, for those never begin with a `@`.

#![allow(dead_code, reason = "the store uses the deployment's names")]

use std::sync::Arc;

use tidegate::plan::Level;

/// The key of a state. A plan that names nothing goes by its numbers.
pub(crate) fn state(prefix: &str, name: Option<&Arc<str>>, level: &Level) -> Vec<u8> {
    match name {
        // A name that a template made may be anything.
        Some(name) if name.starts_with('@') => format!("{prefix}@{name}").into_bytes(),
        Some(name) => [prefix.as_bytes(), name.as_bytes()].concat(),
        None => format!("{prefix}{:016x}:{}", level.family, level.key).into_bytes(),
    }
}

/// The secret that all nodes hash keys with.
pub(crate) fn secret(prefix: &str) -> Vec<u8> {
    deployment(prefix, "secret")
}

/// The nodes that are alive, by when they last said so.
pub(crate) fn heartbeats(prefix: &str) -> Vec<u8> {
    deployment(prefix, "nodes")
}

fn deployment(prefix: &str, what: &str) -> Vec<u8> {
    format!("{prefix}@{what}").into_bytes()
}

#[cfg(test)]
mod tests {
    use tidegate::Key;
    use tidegate::algorithm::{Spec, total};
    use tidegate::plan::Enforcement;
    use tidegate::policy::OnStoreFailure;
    use tidegate::units::Amount;

    use super::*;

    const LEVEL: Level = Level {
        limit: 0,
        family: 10,
        key: Key(11),
        spec: Spec::Total(total::Spec { limit: Amount::ONE }),
        cost: Amount::ONE,
        refundable: false,
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
    fn no_state_can_be_called_like_the_deployments_own() {
        for own in [secret("tg:"), heartbeats("tg:")] {
            let name: Arc<str> = std::str::from_utf8(&own["tg:".len()..]).unwrap().into();
            assert_ne!(state("tg:", Some(&name), &LEVEL), own);
        }
    }
}
