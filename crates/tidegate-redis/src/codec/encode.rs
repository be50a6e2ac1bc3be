//! Encodes the commands of one call.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::engine::algorithm::Spec;
use tidegate::engine::plan::{LEVELS_MAX, Level, PerLevel, Plan};

use super::Command;
use super::writer::Writer;
use crate::keys;

/// The commands of a call, as the script takes them.
#[derive(Debug, Default)]
pub(crate) struct EncodedBatch {
    /// Each key once.
    pub(crate) keys: Vec<Vec<u8>>,
    /// The arguments behind the header.
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) layout: BatchLayout,
}

/// The layout of a call, which is needed to decode its reply.
#[derive(Debug, Default)]
pub(crate) struct BatchLayout {
    /// For each plain command the indices of its keys, from one on.
    pub(super) plain: Vec<Option<PerLevel<u8>>>,
    pub(super) keys: usize,
}

/// What several plain commands say, apart from their own keys.
struct Pattern<'a> {
    plan: &'a Plan,
    commands: usize,
    /// For each level the index of its key, if all commands have the same key; or 0.
    common_keys: PerLevel<u8>,
}

/// Encodes commands; their keys begin with the prefix.
pub(crate) fn encode<'a>(
    commands: impl IntoIterator<Item = &'a Command>,
    prefix: &str,
) -> EncodedBatch {
    let commands = commands.into_iter();
    let count = commands.size_hint().0;
    let mut index = KeyIndex { prefix, indices: HashMap::with_capacity(count * 2) };
    let (mut plain, mut codes) = (Vec::with_capacity(count), Vec::with_capacity(count));
    let (mut patterns, mut others): (Vec<Pattern<'_>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    for command in commands {
        let keys = index.keys_of(command);
        let pattern = find_pattern(command, &keys, &mut patterns);
        if pattern.is_none() {
            others.push(Writer::command(command, &keys));
        }
        let (code, keys) = pattern.unzip();
        codes.push(code.unwrap_or_default());
        plain.push(keys);
    }
    let list = command_list(&codes, &plain, &mut patterns);
    let keys = index.into_keys();
    let layout = BatchLayout { plain, keys: keys.len() };
    let patterns = patterns.iter().map(|one| Writer::pattern(one.plan, &one.common_keys));
    let arguments = std::iter::once(list).chain(patterns).chain(others).collect();
    EncodedBatch { keys, arguments, layout }
}

/// The pattern of a plan that the script's fast path can decide: its number, from one on, and the
/// indices of the plan's keys. A new pattern is added.
fn find_pattern<'a>(
    command: &'a Command,
    keys: &[u16],
    patterns: &mut Vec<Pattern<'a>>,
) -> Option<(u8, PerLevel<u8>)> {
    let Command::Decide(plan) = command else { return None };
    if !is_plain(plan) {
        return None;
    }
    let keys = keys.iter().map(|key| u8::try_from(*key).ok());
    let keys = keys.collect::<Option<PerLevel<u8>>>()?;
    let known = patterns.iter().position(|pattern| says_the_same(pattern.plan, plan));
    let code = u8::try_from(known.unwrap_or(patterns.len()) + 1).ok()?;
    if let Some(pattern) = known.and_then(|known| patterns.get_mut(known)) {
        pattern.commands += 1;
        for (common, key) in pattern.common_keys.iter_mut().zip(&keys) {
            if common != key {
                *common = 0;
            }
        }
    } else {
        patterns.push(Pattern { plan, commands: 1, common_keys: keys.clone() });
    }
    Some((code, keys))
}

/// The first argument: the pattern of each command, and the indices of the keys that are its own. A
/// single command has only keys of its own.
fn command_list(
    codes: &[u8],
    plain: &[Option<PerLevel<u8>>],
    patterns: &mut [Pattern<'_>],
) -> Vec<u8> {
    for pattern in patterns.iter_mut().filter(|pattern| pattern.commands == 1) {
        pattern.common_keys.iter_mut().for_each(|key| *key = 0);
    }
    let mut list = Vec::with_capacity(1 + 3 * codes.len());
    list.push(u8::try_from(patterns.len()).unwrap_or(u8::MAX));
    for (code, keys) in codes.iter().zip(plain) {
        list.push(*code);
        let pattern = usize::from(*code).checked_sub(1).and_then(|index| patterns.get(index));
        if let (Some(pattern), Some(keys)) = (pattern, keys) {
            let own = keys.iter().zip(&pattern.common_keys).filter(|(_, common)| **common == 0);
            list.extend(own.map(|(key, _)| key));
        }
    }
    list
}

/// True if two plans differ at most in their keys, as far as the script sees them.
fn says_the_same(one: &Plan, other: &Plan) -> bool {
    let same = |(one, other): (&Level, &Level)| {
        one.cost == other.cost && one.enforcement == other.enforcement && one.spec == other.spec
    };
    one.mode == other.mode
        && one.levels.len() == other.levels.len()
        && one.levels.iter().zip(&other.levels).all(same)
}

/// True for buckets and fixed windows, each on a key of its own.
fn is_plain(plan: &Plan) -> bool {
    let Plan { levels, names, .. } = plan;
    let is_simple =
        |level: &Level| matches!(level.spec, Spec::TokenBucket(_) | Spec::FixedWindow(_));
    let is_new =
        |(index, name): (usize, &Arc<str>)| !names.iter().take(index).any(|one| one == name);
    levels.len() <= LEVELS_MAX
        && levels.iter().all(is_simple)
        && names.len() == levels.len()
        && names.iter().enumerate().all(is_new)
}

/// The indices of keys among those of the call, from one on.
struct KeyIndex<'p> {
    prefix: &'p str,
    indices: HashMap<Vec<u8>, u16>,
}

impl KeyIndex<'_> {
    /// The indices of a command's keys. A ceiling has no state and no key.
    fn keys_of(&mut self, command: &Command) -> PerLevel<u16> {
        let states = command.states().take(LEVELS_MAX);
        let with_key = states.filter(|(_, level)| !matches!(level.spec, Spec::Ceiling(_)));
        let index = with_key.map(|(name, level)| {
            let next = u16::try_from(self.indices.len() + 1).unwrap_or(u16::MAX);
            *self.indices.entry(keys::state(self.prefix, name, level)).or_insert(next)
        });
        index.collect()
    }

    fn into_keys(self) -> Vec<Vec<u8>> {
        let mut keys = vec![Vec::new(); self.indices.len()];
        for (key, index) in self.indices {
            if let Some(entry) = keys.get_mut(usize::from(index) - 1) {
                *entry = key;
            }
        }
        keys
    }
}
