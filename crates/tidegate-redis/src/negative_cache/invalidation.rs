//! The messages by which nodes invalidate each other's negative caches.
//!
//! A message is a list of changes: `k`, the length of a name in four bytes and the name; `f` and the
//! eight bytes of a family; or `*`. Numbers are little-endian.

use std::sync::Arc;

/// A change after which cached refusals may no longer hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Invalidation {
    /// One state, by its name behind the prefix.
    Key(Arc<str>),
    /// All states of a limit, by its [family](tidegate::engine::plan::Level::family).
    Family(u64),
    /// All states.
    All,
}

/// The message that carries these changes.
pub(super) fn write(changes: &[Invalidation]) -> Vec<u8> {
    let mut message = Vec::new();
    for change in changes {
        match change {
            // A name longer than four gigabytes makes the message unreadable, which means any change.
            Invalidation::Key(name) => {
                message.push(b'k');
                message.extend(u32::try_from(name.len()).unwrap_or(u32::MAX).to_le_bytes());
                message.extend(name.as_bytes());
            }
            Invalidation::Family(family) => {
                message.push(b'f');
                message.extend(family.to_le_bytes());
            }
            Invalidation::All => message.push(b'*'),
        }
    }
    message
}

/// The changes of a message. A message that cannot be read may mean any change.
pub(super) fn read(message: &[u8]) -> Vec<Invalidation> {
    let (mut rest, mut changes) = (message, Vec::new());
    while !rest.is_empty() {
        let Some((change, behind)) = read_one(rest) else {
            return vec![Invalidation::All];
        };
        changes.push(change);
        rest = behind;
    }
    changes
}

fn read_one(message: &[u8]) -> Option<(Invalidation, &[u8])> {
    let (kind, rest) = message.split_first()?;
    match kind {
        b'k' => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (name, rest) = rest.split_at_checked(length)?;
            Some((Invalidation::Key(str::from_utf8(name).ok()?.into()), rest))
        }
        b'f' => {
            let (family, rest) = rest.split_first_chunk::<8>()?;
            Some((Invalidation::Family(u64::from_le_bytes(*family)), rest))
        }
        b'*' => Some((Invalidation::All, rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_it_was_written() {
        let changes = vec![
            Invalidation::Key("api:calls:\n*k".into()),
            Invalidation::Family(0x0102_0304_0506_0708),
            Invalidation::Key("".into()),
            Invalidation::All,
        ];
        assert_eq!(read(&write(&changes)), changes);
        assert_eq!(read(b""), []);
    }

    #[test]
    fn a_message_that_cannot_be_read_invalidates_everything() {
        let whole = write(&[Invalidation::Key("abc".into()), Invalidation::Family(7)]);
        for end in (1..whole.len()).filter(|end| *end != 8) {
            assert_eq!(read(&whole[..end]), [Invalidation::All], "{end} bytes");
        }
        assert_eq!(read(b"hello"), [Invalidation::All]);
        assert_eq!(read(b"k\x01\0\0\0\xff"), [Invalidation::All]);
    }
}
