//! Packs the asks of one call.

use std::collections::HashMap;
use std::sync::Arc;

use tidegate::algorithm::Spec;
use tidegate::plan::{LEVELS_MAX, Level, PerLevel, Plan};

use super::Ask;
use super::writer::Writer;
use crate::keys;

/// The asks of a call, as the script takes them.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    /// Each key once.
    pub(crate) keys: Vec<Vec<u8>>,
    /// Those that come behind the header.
    pub(crate) arguments: Vec<Vec<u8>>,
    pub(crate) layout: Layout,
}

/// How a call is laid out, which its reply goes by.
#[derive(Debug, Default)]
pub(crate) struct Layout {
    /// The places of the keys of each ask that is plain, from one on.
    pub(super) plain: Vec<Option<PerLevel<u8>>>,
    pub(super) keys: usize,
}

/// What plain asks of a call say, their own keys aside.
struct Pattern<'a> {
    plan: &'a Plan,
    asks: usize,
    /// Of each level the place of its key, if that of all asks is the same; or 0.
    common: PerLevel<u8>,
}

/// Packs asks; their keys begin with the prefix.
pub(crate) fn encode<'a>(asks: impl IntoIterator<Item = &'a Ask>, prefix: &str) -> Packed {
    let asks = asks.into_iter();
    let mut places = Places { prefix, places: HashMap::with_capacity(asks.size_hint().0 * 2) };
    let mut plain = Vec::with_capacity(asks.size_hint().0);
    let (mut patterns, mut others): (Vec<Pattern<'_>>, Vec<Vec<u8>>) = (Vec::new(), Vec::new());
    let mut codes = Vec::with_capacity(asks.size_hint().0);
    for ask in asks {
        let own = places.of(ask);
        let pattern = pattern(ask, &own, &mut patterns);
        if pattern.is_none() {
            others.push(Writer::ask(ask, &own));
        }
        let (code, own) = pattern.unzip();
        codes.push(code.unwrap_or_default());
        plain.push(own);
    }
    let codes = told_apart(&codes, &plain, &mut patterns);
    let keys = places.into_keys();
    let layout = Layout { plain, keys: keys.len() };
    let patterns = patterns.iter().map(|one| Writer::pattern(one.plan, &one.common));
    let arguments = std::iter::once(codes).chain(patterns).chain(others).collect();
    Packed { keys, arguments, layout }
}

/// Which of the patterns a plan is that the script can decide straight on, from one on, and the places
/// of its keys. One that is new is added.
fn pattern<'a>(
    ask: &'a Ask,
    places: &[u16],
    patterns: &mut Vec<Pattern<'a>>,
) -> Option<(u8, PerLevel<u8>)> {
    let Ask::Decide(plan) = ask else { return None };
    if !is_plain(plan) {
        return None;
    }
    let own = places.iter().map(|place| u8::try_from(*place).ok());
    let own = own.collect::<Option<PerLevel<u8>>>()?;
    let known = patterns.iter().position(|one| says_the_same(one.plan, plan));
    let code = u8::try_from(known.unwrap_or(patterns.len()) + 1).ok()?;
    if let Some(pattern) = known.and_then(|known| patterns.get_mut(known)) {
        pattern.meet(&own);
    } else {
        patterns.push(Pattern { plan, asks: 1, common: own.clone() });
    }
    Some((code, own))
}

impl Pattern<'_> {
    /// One more ask, with these places.
    fn meet(&mut self, own: &[u8]) {
        self.asks += 1;
        for (common, own) in self.common.iter_mut().zip(own) {
            if common != own {
                *common = 0;
            }
        }
    }
}

/// Which ask is of which pattern, with the places of the keys that are its own. With a single ask all
/// keys are.
fn told_apart(
    codes: &[u8],
    plain: &[Option<PerLevel<u8>>],
    patterns: &mut [Pattern<'_>],
) -> Vec<u8> {
    for pattern in patterns.iter_mut().filter(|pattern| pattern.asks == 1) {
        pattern.common.iter_mut().for_each(|place| *place = 0);
    }
    let mut told = Vec::with_capacity(1 + 3 * codes.len());
    told.push(u8::try_from(patterns.len()).unwrap_or(u8::MAX));
    for (code, places) in codes.iter().zip(plain) {
        told.push(*code);
        let pattern = usize::from(*code).checked_sub(1).and_then(|index| patterns.get(index));
        if let (Some(pattern), Some(places)) = (pattern, places) {
            let own = places.iter().zip(&pattern.common).filter(|(_, common)| **common == 0);
            told.extend(own.map(|(place, _)| place));
        }
    }
    told
}

/// Whether two plans differ at most in their keys, as far as the script hears of them.
fn says_the_same(one: &Plan, other: &Plan) -> bool {
    let same = |(one, other): (&Level, &Level)| {
        one.cost == other.cost && one.enforcement == other.enforcement && one.spec == other.spec
    };
    one.mode == other.mode
        && one.levels.len() == other.levels.len()
        && one.levels.iter().zip(&other.levels).all(same)
}

/// Buckets and fixed windows, each on a key of its own.
fn is_plain(plan: &Plan) -> bool {
    let Plan { levels, names, .. } = plan;
    let simple = |level: &Level| matches!(level.spec, Spec::TokenBucket(_) | Spec::FixedWindow(_));
    let own = |(index, name): (usize, &Arc<str>)| !names.iter().take(index).any(|one| one == name);
    levels.len() <= LEVELS_MAX
        && levels.iter().all(simple)
        && names.len() == levels.len()
        && names.iter().enumerate().all(own)
}

/// Where keys are among those of the call, from one on.
struct Places<'p> {
    prefix: &'p str,
    places: HashMap<Vec<u8>, u16>,
}

impl Places<'_> {
    fn of(&mut self, ask: &Ask) -> PerLevel<u16> {
        match ask {
            Ask::Decide(plan) => {
                let levels = plan.levels.iter().take(LEVELS_MAX).enumerate();
                levels.filter_map(|(at, level)| self.place(plan.names.get(at), level)).collect()
            }
            Ask::Amend(amendments) => {
                let amendments = amendments.iter().take(LEVELS_MAX);
                amendments.filter_map(|one| self.place(one.name.as_ref(), &one.level)).collect()
            }
            Ask::Lend(loan) => self.place(loan.name.as_ref(), &loan.level).into_iter().collect(),
        }
    }

    /// A ceiling keeps nothing and has no key.
    fn place(&mut self, name: Option<&Arc<str>>, level: &Level) -> Option<u16> {
        if matches!(level.spec, Spec::Ceiling(_)) {
            return None;
        }
        let next = u16::try_from(self.places.len() + 1).unwrap_or(u16::MAX);
        Some(*self.places.entry(keys::state(self.prefix, name, level)).or_insert(next))
    }

    fn into_keys(self) -> Vec<Vec<u8>> {
        let mut keys = vec![Vec::new(); self.places.len()];
        for (key, place) in self.places {
            if let Some(slot) = keys.get_mut(usize::from(place) - 1) {
                *slot = key;
            }
        }
        keys
    }
}
