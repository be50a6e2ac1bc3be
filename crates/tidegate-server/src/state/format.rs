//! The bytes of a file of the state directory: a head, then blocks.
//!
//! ```text
//! head    "tidegate" (8) | version (4)
//! block   "\xF5tgb" (4) | length of the content (4) | CRC-32 (4) | synced (8) | content
//! ```
//! Numbers are little-endian. The content of the first block is a [`Preamble`], that of every further
//! one the clocks and then records, all in postcard. `synced` is how many bytes of the file were known
//! to be on the disk when the block was begun: by it, what a crash left unfinished at the end of a log
//! is told from damage in its middle. The checksum is of `synced` and the content.
//!
//! A release that changes what is in a block raises the version.

use std::fmt;
use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate::clock::Now;

const MAGIC: [u8; 8] = *b"tidegate";
const VERSION: u32 = 4;
pub(super) const HEAD_BYTES: usize = 12;
/// What a block begins with. No text does.
pub(super) const BLOCK: [u8; 4] = *b"\xF5tgb";
/// What stands before the content of a block.
const BLOCK_HEAD_BYTES: usize = 20;
/// A block is written once its content is this long.
const BLOCK_BYTES: usize = 64 << 10;
/// Longer than the longest key: eight full logs of a sliding window.
const CONTENT_BYTES_MAX: usize = 64 << 20;

/// Why a file is refused.
#[derive(Debug)]
pub(super) enum BadFile {
    Io(io::Error),
    Foreign,
    OtherVersion(u32),
    Torn { bytes: u64 },
    Damaged { at: u64 },
    Malformed(String),
    Missing,
    OtherSecret,
}

impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "it cannot be read: {error}"),
            Self::Foreign => f.write_str("it is not a file of Tidegate's"),
            Self::OtherVersion(version) => {
                write!(f, "found format {version}, and this release reads format {VERSION}")
            }
            Self::Torn { bytes } => {
                write!(f, "it is torn: it ends after {bytes} bytes, before its end")
            }
            Self::Damaged { at } => {
                write!(f, "it is damaged: a checksum does not match at byte {at}")
            }
            Self::Malformed(what) => write!(f, "it is damaged: {what}"),
            Self::Missing => f.write_str("it is not there, and what was written after it is"),
            Self::OtherSecret => {
                f.write_str("it was saved with another hash key, under which no key is the same")
            }
        }
    }
}

impl From<io::Error> for BadFile {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    /// Everything, as it was while this was written.
    Base,
    /// What changed since.
    Log,
}

/// What holds for a whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Preamble {
    pub(super) role: Role,
    /// What its records are.
    pub(super) of: String,
    /// Of a log, its number; of a base, the number of the first log that comes after it.
    pub(super) number: u64,
    /// Of a log, how many bytes of the log before it count.
    pub(super) previous_bytes: u64,
    /// Which process wrote it: all of one process have the same steady clock.
    pub(super) run: u64,
    /// The clocks when it was begun.
    pub(super) at: Now,
    /// Of the secret that keys are hashed with.
    pub(super) fingerprint: u64,
}

/// Writes a file, block by block.
pub(super) struct Writer<W> {
    to: W,
    /// The block in hand, with room for what stands before its content.
    block: Vec<u8>,
    bytes: u64,
    synced: u64,
}

impl<W: Write> Writer<W> {
    pub(super) fn begin(mut to: W, preamble: &Preamble) -> io::Result<Self> {
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        let block = vec![0; BLOCK_HEAD_BYTES];
        let mut writer = Self { to, block, bytes: HEAD_BYTES as u64, synced: 0 };
        writer.push(preamble)?;
        writer.end_block()?;
        Ok(writer)
    }

    /// Where it writes to.
    pub(super) const fn to(&self) -> &W {
        &self.to
    }

    /// How many bytes were written.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many of them are on the disk.
    pub(super) const fn synced(&self) -> u64 {
        self.synced
    }

    /// Adds a record that was taken at this time.
    pub(super) fn record(&mut self, at: Now, record: &impl Serialize) -> io::Result<()> {
        if self.is_empty() {
            self.push(&at)?;
        }
        self.push(record)?;
        if self.block.len() < BLOCK_BYTES { Ok(()) } else { self.end_block() }
    }

    /// Says that everything is written, by a block without records.
    pub(super) fn end(&mut self, at: Now) -> io::Result<()> {
        self.end_block()?;
        self.push(&at)?;
        self.end_block()
    }

    /// Writes the records in hand.
    pub(super) fn end_block(&mut self) -> io::Result<()> {
        if self.is_empty() {
            return Ok(());
        }
        let content = self.block.len() - BLOCK_HEAD_BYTES;
        let length = u32::try_from(content).map_err(io::Error::other)?;
        let synced = self.synced.to_le_bytes();
        self.block[..4].copy_from_slice(&BLOCK);
        self.block[4..8].copy_from_slice(&length.to_le_bytes());
        self.block[12..20].copy_from_slice(&synced);
        let sum = crc32fast::hash(&self.block[12..]);
        self.block[8..12].copy_from_slice(&sum.to_le_bytes());
        self.to.write_all(&self.block)?;
        self.bytes += self.block.len() as u64;
        self.block.truncate(BLOCK_HEAD_BYTES);
        Ok(())
    }

    /// What was written is on the disk from now on, as `sync` sees to.
    pub(super) fn sync(&mut self, sync: impl FnOnce(&W) -> io::Result<()>) -> io::Result<()> {
        self.end_block()?;
        sync(&self.to)?;
        self.synced = self.bytes;
        Ok(())
    }

    fn is_empty(&self) -> bool {
        self.block.len() <= BLOCK_HEAD_BYTES
    }

    fn push(&mut self, value: &impl Serialize) -> io::Result<()> {
        let block = std::mem::take(&mut self.block);
        self.block = postcard::to_extend(value, block).map_err(io::Error::other)?;
        Ok(())
    }
}

/// Reads a file, block by block.
pub(super) struct Reader<R> {
    from: R,
    /// Where the next block begins.
    at: u64,
    content: Vec<u8>,
}

impl<R: Read> Reader<R> {
    /// Reads the head, and refuses what another program or release wrote.
    pub(super) fn begin(mut from: R) -> Result<(Preamble, Self), BadFile> {
        let mut head = [0; HEAD_BYTES];
        let read = read_up_to(&mut from, &mut head)?;
        let magic = read.min(MAGIC.len());
        if head[..magic] != MAGIC[..magic] {
            return Err(BadFile::Foreign);
        }
        if read < HEAD_BYTES {
            return Err(BadFile::Torn { bytes: read as u64 });
        }
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if version != VERSION {
            return Err(BadFile::OtherVersion(version));
        }
        let mut reader = Self::at(from, HEAD_BYTES as u64);
        let Some(_) = reader.next_block()? else {
            return Err(BadFile::Torn { bytes: HEAD_BYTES as u64 });
        };
        let (preamble, rest) = take(&reader.content)?;
        if rest.is_empty() { Ok((preamble, reader)) } else { Err(too_much()) }
    }

    /// Reads on from a block that begins here.
    pub(super) const fn at(from: R, at: u64) -> Self {
        Self { from, at, content: Vec::new() }
    }

    /// Where the next block begins.
    pub(super) const fn position(&self) -> u64 {
        self.at
    }

    /// Reads the next block; returns what was synced when it was begun, or `None` at the end. What is
    /// wrong leaves the position where it was.
    pub(super) fn next_block(&mut self) -> Result<Option<u64>, BadFile> {
        let mut head = [0; BLOCK_HEAD_BYTES];
        match read_up_to(&mut self.from, &mut head)? {
            0 => return Ok(None),
            BLOCK_HEAD_BYTES => {}
            read => return Err(BadFile::Torn { bytes: self.at + read as u64 }),
        }
        let (mark, length, sum) = (&head[..4], &head[4..8], &head[8..12]);
        let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if mark != BLOCK || length > CONTENT_BYTES_MAX {
            return Err(BadFile::Damaged { at: self.at });
        }
        self.content.resize(length, 0);
        let read = read_up_to(&mut self.from, &mut self.content)?;
        if read < length {
            return Err(BadFile::Torn { bytes: self.at + (BLOCK_HEAD_BYTES + read) as u64 });
        }
        let mut found = crc32fast::Hasher::new();
        found.update(&head[12..]);
        found.update(&self.content);
        if sum != found.finalize().to_le_bytes() {
            return Err(BadFile::Damaged { at: self.at });
        }
        self.at += (BLOCK_HEAD_BYTES + length) as u64;
        Ok(Some(head[12..].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))))
    }

    /// When the block in hand was written, and its records.
    pub(super) fn records<T: DeserializeOwned>(&self) -> Result<(Now, Vec<T>), BadFile> {
        let (at, mut rest) = take(&self.content)?;
        let mut records = Vec::new();
        while !rest.is_empty() {
            let record;
            (record, rest) = take(rest)?;
            records.push(record);
        }
        Ok((at, records))
    }
}

/// Reads until the buffer is full or there is no more; returns how much there was.
fn read_up_to(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match from.read(&mut buffer[filled..]) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}

fn take<'b, T: Deserialize<'b>>(content: &'b [u8]) -> Result<(T, &'b [u8]), BadFile> {
    postcard::take_from_bytes(content).map_err(|error| BadFile::Malformed(error.to_string()))
}

fn too_much() -> BadFile {
    BadFile::Malformed("found more in a block than belongs there".to_owned())
}
