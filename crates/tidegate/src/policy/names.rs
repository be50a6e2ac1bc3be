//! Names as small numbers inside, words only at the edge.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// A list of distinct names. The id of a name is its place in the list.
#[derive(Clone, Debug, Default)]
pub(crate) struct Names {
    list: Vec<Box<str>>,
    /// Clients cannot add names, so that the hash needs no secret.
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
        self.ids.insert(name.into(), id);
        id
    }

    /// The id of a name.
    pub(crate) fn id(&self, name: &str) -> Option<u32> {
        self.ids.get(name).copied()
    }

    /// The name of an id; empty for an id that no name has.
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
