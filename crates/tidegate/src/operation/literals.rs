//! Where literal segments lead to, of all nodes of a trie in one table: a segment costs a look at one
//! place of it, nearly always, and is not hashed byte by byte.
//!
//! Its texts are those of the policy. Whoever sends a request cannot add to it, so that it needs no
//! secret.

use crate::word::Word;

/// Which segment leads from which node to which other.
#[derive(Clone, Debug, Default)]
pub(super) struct Literals {
    /// A power of two of places, at most half of them taken; an edge stands at the place that its hash
    /// says, or at the first free one behind it.
    places: Vec<Option<Edge>>,
    count: usize,
}

#[derive(Clone, Debug)]
struct Edge {
    word: Word,
    from: usize,
    to: usize,
    text: Box<[u8]>,
}

impl Literals {
    /// Where a segment leads to from a node.
    #[inline(always)]
    pub(super) fn get(&self, from: usize, segment: &[u8]) -> Option<usize> {
        let (word, mask) = (Word::of(segment), self.places.len().wrapping_sub(1));
        let mut place = first_place(word.hash(segment), from);
        // Half of the places are free, so that one of them ends it.
        while let Some(Some(edge)) = self.places.get(place & mask) {
            let same_word = edge.word == word && edge.from == from;
            if same_word && (word.is_whole() || *edge.text == *segment) {
                return Some(edge.to);
            }
            place = place.wrapping_add(1);
        }
        None
    }

    /// Has a segment lead from one node to another, which it did not before.
    pub(super) fn insert(&mut self, from: usize, segment: &[u8], to: usize) {
        if 2 * (self.count + 1) > self.places.len() {
            let wider = vec![None; (self.places.len() * 2).max(8)];
            let edges = std::mem::replace(&mut self.places, wider);
            edges.into_iter().flatten().for_each(|edge| self.place(edge));
        }
        self.count += 1;
        self.place(Edge { word: Word::of(segment), from, to, text: segment.into() });
    }

    fn place(&mut self, edge: Edge) {
        let mask = self.places.len() - 1;
        let mut place = first_place(edge.word.hash(&edge.text), edge.from) & mask;
        while self.places[place].is_some() {
            place = (place + 1) & mask;
        }
        self.places[place] = Some(edge);
    }
}

/// Where an edge stands first, as far as its low bits are places.
#[allow(clippy::cast_possible_truncation, reason = "any bits of a hash will do")]
#[inline(always)]
fn first_place(hash: u64, from: usize) -> usize {
    hash as usize ^ from.wrapping_mul(0x9e37_79b1)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn segments_that_differ_a_little_stand_apart() {
        for pattern in ["metric", "v1item", "report", "endpoint-", "item-of-", ""] {
            let mut literals = Literals::default();
            for number in 0..90 {
                literals.insert(7, format!("{pattern}{number:02}").as_bytes(), number);
            }
            let taken: Vec<bool> = literals.places.iter().map(Option::is_some).collect();
            let longest = taken.split(|taken| !taken).map(<[bool]>::len).max();
            assert!(longest < Some(20), "{pattern}: {longest:?} in a row of {}", taken.len());
        }
    }

    proptest! {
        #[test]
        fn segments_lead_where_they_were_said_to(
            edges in prop::collection::hash_map((0_usize..4, "[ab]{0,10}"), 0_usize..1_000, 0..120),
            others in prop::collection::vec((0_usize..5, "[abc]{0,12}"), 0..40),
        ) {
            let mut literals = Literals::default();
            for ((from, segment), to) in &edges {
                literals.insert(*from, segment.as_bytes(), *to);
            }
            let edges: HashMap<(usize, String), usize> = edges;
            let asked = edges.keys().cloned().chain(others);
            for (from, segment) in asked {
                let expected = edges.get(&(from, segment.clone())).copied();
                prop_assert_eq!(literals.get(from, segment.as_bytes()), expected);
            }
        }
    }
}
