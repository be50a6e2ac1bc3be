//! The bytes of a snapshot: a header of fixed length, then frames.
//!
//! ```text
//! header   magic (8) | version (4) | length of the body (8) | CRC-32 of the body (4)
//! frame    kind (1) | length (4) | postcard
//! ```
//! Numbers are little-endian. The first frame is the preamble, every further one a key, or a mark in
//! the file of marks. A release
//! that adds a kind of frame, or changes what is in one, raises the version.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;

use serde::{Deserialize, Serialize};
use tidegate::clock::Now;
use tidegate::marks::Mark;
use tidegate::store::SavedKey;

const MAGIC: [u8; 8] = *b"tidegate";
const VERSION: u32 = 3;
const PREAMBLE: u8 = 1;
const KEY: u8 = 2;
const MARK: u8 = 3;
/// Longer than the longest key: eight full logs of a sliding window.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// Why a snapshot is refused.
#[derive(Debug)]
pub(super) enum BadSnapshot {
    Io(io::Error),
    Foreign,
    OtherVersion(u32),
    Torn { expected_bytes: u64, found_bytes: u64 },
    Damaged,
    Malformed(String),
    OtherSecret,
}

impl BadSnapshot {
    /// What to do about it.
    pub(super) const fn advice(&self) -> &'static str {
        match self {
            Self::Io(_) => "try again, or move it away to start with empty counters",
            Self::OtherVersion(_) => {
                "use the release that wrote it, or move it away to start with empty counters"
            }
            Self::OtherSecret => {
                "use the hash key that they were saved with, or move them away to start with empty counters"
            }
            Self::Foreign | Self::Torn { .. } | Self::Damaged | Self::Malformed(_) => {
                "move it away to start with empty counters"
            }
        }
    }
}

impl fmt::Display for BadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "it cannot be read: {error}"),
            Self::Foreign => f.write_str("it is not a file of Tidegate's"),
            Self::OtherVersion(version) => {
                write!(f, "found format {version}, and this release reads format {VERSION}")
            }
            Self::Torn { expected_bytes, found_bytes } => {
                write!(f, "it is torn: found {found_bytes} bytes, expected {expected_bytes}")
            }
            Self::Damaged => f.write_str("it is damaged: its checksum does not match"),
            Self::Malformed(what) => write!(f, "it is damaged: {what}"),
            Self::OtherSecret => {
                f.write_str("they were saved with another hash key, under which no key is the same")
            }
        }
    }
}

impl From<io::Error> for BadSnapshot {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What stands before the body.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) body_bytes: u64,
    crc: u32,
}

impl Header {
    pub(super) const BYTES: u64 = 24;

    fn bytes(&self) -> Vec<u8> {
        let length = self.body_bytes.to_le_bytes();
        [&MAGIC[..], &VERSION.to_le_bytes(), &length, &self.crc.to_le_bytes()].concat()
    }

    /// Reads the header, and refuses what another program or release wrote.
    pub(super) fn read(from: &mut impl Read) -> Result<Self, BadSnapshot> {
        let mut bytes = Vec::new();
        from.take(Self::BYTES).read_to_end(&mut bytes)?;
        let (magic, rest) = bytes.split_at(bytes.len().min(MAGIC.len()));
        if magic != &MAGIC[..magic.len()] {
            return Err(BadSnapshot::Foreign);
        }
        let found_bytes = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let torn = BadSnapshot::Torn { expected_bytes: Self::BYTES, found_bytes };
        let Some((version, rest)) = rest.split_first_chunk() else { return Err(torn) };
        match u32::from_le_bytes(*version) {
            VERSION => {}
            other => return Err(BadSnapshot::OtherVersion(other)),
        }
        let Some((length, rest)) = rest.split_first_chunk() else { return Err(torn) };
        let Some((crc, _)) = rest.split_first_chunk() else { return Err(torn) };
        Ok(Self { body_bytes: u64::from_le_bytes(*length), crc: u32::from_le_bytes(*crc) })
    }

    /// Reads the whole body and compares it with what the header says.
    pub(super) fn check(&self, body: impl Read, file_bytes: u64) -> Result<(), BadSnapshot> {
        let expected_bytes = self.body_bytes.saturating_add(Self::BYTES);
        if file_bytes != expected_bytes {
            return Err(BadSnapshot::Torn { expected_bytes, found_bytes: file_bytes });
        }
        let mut sum = Checksum::default();
        io::copy(&mut body.take(self.body_bytes), &mut sum)?;
        if sum.bytes == self.body_bytes && sum.hasher.finalize() == self.crc {
            Ok(())
        } else {
            Err(BadSnapshot::Damaged)
        }
    }
}

/// Counts and sums up what is written to it.
#[derive(Default)]
struct Checksum {
    hasher: crc32fast::Hasher,
    bytes: u64,
}

impl Write for Checksum {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.hasher.update(bytes);
        self.bytes += u64::try_from(bytes.len()).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What holds for all keys.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Preamble {
    /// The clocks when the keys were saved.
    pub(super) saved_at: Now,
    /// Of the secret that the keys are hashed with.
    pub(super) fingerprint: u64,
}

/// Writes a snapshot, frame by frame.
pub(super) struct Writer<W> {
    to: W,
    sum: Checksum,
}

impl<W: Write + Seek> Writer<W> {
    /// Leaves room for the header, which is known at the end.
    pub(super) fn begin(mut to: W) -> io::Result<Self> {
        to.seek(SeekFrom::Start(Header::BYTES))?;
        Ok(Self { to, sum: Checksum::default() })
    }

    pub(super) fn preamble(&mut self, preamble: &Preamble) -> io::Result<()> {
        self.frame(PREAMBLE, preamble)
    }

    pub(super) fn key(&mut self, key: &SavedKey) -> io::Result<()> {
        self.frame(KEY, key)
    }

    pub(super) fn mark(&mut self, mark: &Mark) -> io::Result<()> {
        self.frame(MARK, mark)
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        let header = Header { body_bytes: self.sum.bytes, crc: self.sum.hasher.finalize() };
        self.to.seek(SeekFrom::Start(0))?;
        self.to.write_all(&header.bytes())?;
        self.to.flush()
    }

    fn frame(&mut self, kind: u8, content: &impl Serialize) -> io::Result<()> {
        let content = postcard::to_stdvec(content).map_err(io::Error::other)?;
        let length = u32::try_from(content.len()).map_err(io::Error::other)?;
        for bytes in [&[kind][..], &length.to_le_bytes(), &content] {
            self.to.write_all(bytes)?;
            self.sum.write_all(bytes)?;
        }
        Ok(())
    }
}

/// What the frames behind the preamble hold.
pub(super) trait Content: for<'b> Deserialize<'b> {
    const KIND: u8;
}

impl Content for SavedKey {
    const KIND: u8 = KEY;
}

impl Content for Mark {
    const KIND: u8 = MARK;
}

/// Reads the keys, or the marks, of a body that has been checked.
pub(super) struct Reader<R, T> {
    from: R,
    of: PhantomData<T>,
    /// The content of the frame in hand.
    content: Vec<u8>,
}

impl<R: Read, T> Reader<R, T> {
    /// The preamble, and what is behind it.
    pub(super) fn begin(from: R) -> Result<(Preamble, Self), BadSnapshot> {
        let mut reader = Self { from, of: PhantomData, content: Vec::new() };
        match reader.frame()? {
            Some(PREAMBLE) => Ok((decode(&reader.content)?, reader)),
            _ => Err(BadSnapshot::Malformed("found no preamble".to_owned())),
        }
    }

    /// Reads the next frame and returns its kind; `None` at the end.
    fn frame(&mut self) -> Result<Option<u8>, BadSnapshot> {
        let mut kind = [0];
        if self.from.read(&mut kind)? == 0 {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.from.read_exact(&mut length)?;
        let length = usize::try_from(u32::from_le_bytes(length)).unwrap_or(usize::MAX);
        if length > FRAME_BYTES_MAX {
            return Err(BadSnapshot::Malformed(format!("found a frame of {length} bytes")));
        }
        self.content.resize(length, 0);
        self.from.read_exact(&mut self.content)?;
        Ok(Some(kind[0]))
    }
}

impl<R: Read, T: Content> Iterator for Reader<R, T> {
    type Item = Result<T, BadSnapshot>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.frame() {
            Ok(None) => None,
            Ok(Some(kind)) if kind == T::KIND => Some(decode(&self.content)),
            Ok(Some(kind)) => {
                Some(Err(BadSnapshot::Malformed(format!("found a frame of the kind {kind}"))))
            }
            Err(error) => Some(Err(error)),
        }
    }
}

fn decode<'b, T: Deserialize<'b>>(content: &'b [u8]) -> Result<T, BadSnapshot> {
    let malformed = |what: &dyn fmt::Display| BadSnapshot::Malformed(what.to_string());
    match postcard::take_from_bytes(content) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(malformed(&"found more in a frame than belongs there")),
        Err(error) => Err(malformed(&error)),
    }
}
