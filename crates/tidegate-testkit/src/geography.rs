//! Small databases of countries in the MMDB form, for tests.
//!
//! A database is a binary tree over the bits of addresses (IPv4 lies at `::/96`), sixteen zero bytes,
//! the records, a marker, and the metadata.

use std::collections::BTreeMap;
use std::net::IpAddr;

/// How records name their country.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordForm {
    /// `country_code`
    Flat,
    /// `country.iso_code`
    Nested,
    /// Not at all: the number of an autonomous system.
    Nothing,
}

const MARKER: &[u8] = b"\xab\xcd\xefMaxMind.com";
const SEPARATOR: [u8; 16] = [0; 16];
/// Bits of a pointer in the tree.
const RECORD_BITS: u16 = 32;

/// The target of one side of a node.
#[derive(Clone, Copy)]
enum Side {
    Nothing,
    Node(usize),
    /// The index of a record.
    Record(usize),
}

/// A database in which each network, such as `("192.0.2.0".parse()?, 24)`, is in a country. Where
/// networks overlap, the smaller one must come later.
#[must_use]
pub fn database(form: RecordForm, networks: &[(IpAddr, u8, &str)]) -> Vec<u8> {
    let mut tree = vec![[Side::Nothing; 2]];
    let (mut records, mut places) = (Vec::new(), BTreeMap::new());
    for (address, prefix, country) in networks {
        let place = *places.entry(*country).or_insert_with(|| {
            let place = records.len();
            records.extend(record(form, country));
            place
        });
        let (bits, length) = match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 96 + u32::from(*prefix)),
            IpAddr::V6(address) => (address.to_bits(), u32::from(*prefix)),
        };
        insert(&mut tree, bits, length, place);
    }
    let nodes = tree.len();
    let mut file = Vec::new();
    for side in tree.iter().flatten() {
        let value = match side {
            Side::Nothing => nodes,
            Side::Node(node) => *node,
            Side::Record(place) => nodes + SEPARATOR.len() + place,
        };
        file.extend(u32::try_from(value).unwrap_or(u32::MAX).to_be_bytes());
    }
    file.extend(SEPARATOR);
    file.extend(records);
    file.extend(MARKER);
    file.extend(metadata(nodes));
    file
}

fn insert(tree: &mut Vec<[Side; 2]>, bits: u128, length: u32, place: usize) {
    let mut node = 0;
    for depth in 0..length {
        let side = usize::from(bits >> (127 - depth) & 1 == 1);
        if depth + 1 == length {
            tree[node][side] = Side::Record(place);
            return;
        }
        node = match tree[node][side] {
            Side::Node(next) => next,
            // A record of a larger network holds on beside the smaller one.
            found => {
                tree.push([found; 2]);
                let next = tree.len() - 1;
                tree[node][side] = Side::Node(next);
                next
            }
        };
    }
}

fn record(form: RecordForm, country: &str) -> Vec<u8> {
    match form {
        RecordForm::Flat => map(&[("country_code", text(country))]),
        RecordForm::Nested => map(&[("country", map(&[("iso_code", text(country))]))]),
        RecordForm::Nothing => map(&[("autonomous_system_number", number(6, 64_500))]),
    }
}

fn metadata(nodes: usize) -> Vec<u8> {
    map(&[
        ("binary_format_major_version", number(5, 2)),
        ("binary_format_minor_version", number(5, 0)),
        ("build_epoch", number(9, 1_767_603_600)),
        ("database_type", text("tidegate-test-country")),
        ("description", map(&[("en", text("countries of tests"))])),
        ("ip_version", number(5, 6)),
        ("languages", [vec![1, 4], text("en")].concat()),
        ("node_count", number(6, u64::try_from(nodes).unwrap_or(u64::MAX))),
        ("record_size", number(5, RECORD_BITS.into())),
    ])
}

/// The type and length of a value of less than 29 bytes or entries.
fn head(kind: u8, size: usize) -> Vec<u8> {
    let size = u8::try_from(size).ok().filter(|size| *size < 29).unwrap_or(28);
    if kind > 7 { vec![size, kind - 7] } else { vec![kind << 5 | size] }
}

fn text(text: &str) -> Vec<u8> {
    [head(2, text.len()), text.as_bytes().to_vec()].concat()
}

/// A whole number without its leading zeros.
fn number(kind: u8, value: u64) -> Vec<u8> {
    let bytes: Vec<u8> = value.to_be_bytes().into_iter().skip_while(|byte| *byte == 0).collect();
    [head(kind, bytes.len()), bytes].concat()
}

fn map(entries: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let pairs = entries.iter().flat_map(|(name, value)| [text(name), value.clone()]);
    [vec![head(7, entries.len())], pairs.collect()].concat().concat()
}
