//! What nodes tell each other: that something was given back, reset or raised.
//!
//! A message is a list of changes: `k`, the length of a name in four bytes and the name; `f` and the
//! eight bytes of a family; or `*`. Numbers are little-endian.

use std::sync::Arc;

use tidegate::plan::Level;

/// What has changed, so that refusals that somebody remembers may be over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Changed {
    /// One state, by its name behind the prefix.
    Key(Arc<str>),
    /// All states of a limit, by its [family](Level::family).
    Family(u64),
    /// Everything.
    Everything,
}

impl Changed {
    /// The state of a level.
    pub(super) fn of(name: Option<&Arc<str>>, level: &Level) -> Self {
        match name {
            Some(name) => Self::Key(Arc::clone(name)),
            None => Self::Key(format!("{:016x}:{}", level.family, level.key).into()),
        }
    }
}

/// The message that tells of these changes.
pub(super) fn write(changes: &[Changed]) -> Vec<u8> {
    let mut message = Vec::new();
    for changed in changes {
        match changed {
            Changed::Key(name) => match u32::try_from(name.len()) {
                Ok(length) => {
                    message.push(b'k');
                    message.extend(length.to_le_bytes());
                    message.extend(name.as_bytes());
                }
                Err(_) => message.push(b'*'),
            },
            Changed::Family(family) => {
                message.push(b'f');
                message.extend(family.to_le_bytes());
            }
            Changed::Everything => message.push(b'*'),
        }
    }
    message
}

/// What a message tells. One that cannot be read may tell of anything.
pub(super) fn read(message: &[u8]) -> Vec<Changed> {
    let (mut rest, mut changes) = (message, Vec::new());
    while !rest.is_empty() {
        let Some((changed, behind)) = read_one(rest) else {
            return vec![Changed::Everything];
        };
        changes.push(changed);
        rest = behind;
    }
    changes
}

fn read_one(message: &[u8]) -> Option<(Changed, &[u8])> {
    let (kind, rest) = message.split_first()?;
    match kind {
        b'k' => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let (name, rest) = rest.split_at_checked(length)?;
            Some((Changed::Key(str::from_utf8(name).ok()?.into()), rest))
        }
        b'f' => {
            let (family, rest) = rest.split_first_chunk::<8>()?;
            Some((Changed::Family(u64::from_le_bytes(*family)), rest))
        }
        b'*' => Some((Changed::Everything, rest)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_is_heard() {
        let changes = vec![
            Changed::Key("api:calls:\n*k".into()),
            Changed::Family(0x0102_0304_0506_0708),
            Changed::Key("".into()),
            Changed::Everything,
        ];
        assert_eq!(read(&write(&changes)), changes);
        assert_eq!(read(b""), []);
    }

    #[test]
    fn what_cannot_be_read_may_be_anything() {
        let whole = write(&[Changed::Key("abc".into()), Changed::Family(7)]);
        for end in (1..whole.len()).filter(|end| *end != 8) {
            assert_eq!(read(&whole[..end]), [Changed::Everything], "{end} bytes");
        }
        assert_eq!(read(b"hello"), [Changed::Everything]);
        assert_eq!(read(b"k\x01\0\0\0\xff"), [Changed::Everything]);
    }
}
