//! Names as small numbers inside, words only at the edge.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::word::Word;

/// So many are looked through sooner than one of them is hashed.
const FEW: usize = 8;

/// A list of distinct names; a name's id is its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    list: Vec<Box<str>>,
    /// Of each in the list.
    words: Vec<Word>,
    /// Whoever sends a request cannot add to it, so that it needs no secret.
    ids: HashMap<Box<str>, u32, FixedState>,
}

impl Names {
    /// The id of a name, added if it is new.
    pub(crate) fn add(&mut self, name: &str) -> u32 {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        self.list.push(name.into());
        self.words.push(Word::of(name.as_bytes()));
        self.ids.insert(name.into(), id);
        id
    }

    /// The id of a name.
    pub(crate) fn id(&self, name: &str) -> Option<u32> {
        if self.words.len() <= FEW {
            let word = Word::of(name.as_bytes());
            let known = (0..).zip(&self.words).filter(|(_, known)| **known == word);
            return known.map(|(id, _)| id).find(|id| word.is_whole() || self.name(*id) == name);
        }
        self.ids.get(name).copied()
    }

    /// The name of an id; empty for one that was never given out.
    pub(crate) fn name(&self, id: u32) -> &str {
        usize::try_from(id).ok().and_then(|id| self.list.get(id)).map_or("", |name| name)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &str> {
        self.list.iter().map(|name| &**name)
    }

    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

impl<'n> FromIterator<&'n str> for Names {
    fn from_iter<I: IntoIterator<Item = &'n str>>(names: I) -> Self {
        let mut result = Self::default();
        for name in names {
            result.add(name);
        }
        result
    }
}
