//! The bytes of a file in the state directory: a head, then blocks.
//!
//! ```text
//! head    "tidegate" (8) | version (4)
//! block   "\xF5tgb" (4) | length of the content (4) | CRC-32 (4) | synced (8) | content
//! ```
//! Numbers are little-endian. The content of the first block is a [`FileHeader`]; every further block
//! holds the clocks and then records, all in postcard. `synced` is the number of bytes that were on the
//! disk when the block was begun. It tells the unfinished end of a log after a crash from damage in its
//! middle. The checksum covers `synced` and the content.
//!
//! A release that changes the content of blocks raises the version.

use std::fmt;
use std::io::{self, Read, Write};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tidegate::clock::Now;

const MAGIC: [u8; 8] = *b"tidegate";
const VERSION: u32 = 4;
pub(super) const HEAD_BYTES: usize = 12;
/// The first bytes of a block. No text begins like this.
pub(super) const BLOCK: [u8; 4] = *b"\xF5tgb";
/// The length of a block before its content.
const BLOCK_HEAD_BYTES: usize = 20;
/// A block is written once its content is this long.
const BLOCK_BYTES: usize = 64 << 10;
/// Longer than the longest key: eight full logs of a sliding window.
const CONTENT_BYTES_MAX: usize = 64 << 20;

/// Why a file is refused.
#[derive(Debug)]
pub(super) enum FileFault {
    Io(io::Error),
    Foreign,
    OtherVersion(u32),
    Torn { bytes: u64 },
    Damaged { at: u64 },
    Malformed(String),
    Missing,
    OtherSecret,
}

impl fmt::Display for FileFault {
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
            Self::Missing => f.write_str("it is not there, and another file says that it was"),
            Self::OtherSecret => {
                f.write_str("it was saved with another hash key, under which no key is the same")
            }
        }
    }
}

impl From<io::Error> for FileFault {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The role of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum FileRole {
    /// All records.
    Snapshot,
    /// The changes since the snapshot.
    Log,
    /// Nothing: its header says which logs there must be.
    Newest,
}

/// The first block of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileHeader {
    pub(super) role: FileRole,
    /// `counters` or `marks`.
    pub(super) of: String,
    /// Of a log, its number; of a snapshot, the number of the first log after it; of `newest`, the
    /// number after the newest log.
    pub(super) number: u64,
    /// Of a log, how many bytes of the log before it count.
    pub(super) previous_bytes: u64,
    /// The process that wrote it. Files of one process share its steady clock.
    pub(super) run: u64,
    /// The clocks when it was begun.
    pub(super) at: Now,
    /// Of the secret that keys are hashed with.
    pub(super) fingerprint: u64,
}

/// Writes a file, block by block.
pub(super) struct RecordWriter<W> {
    to: W,
    /// The current block, with space for its head.
    block: Vec<u8>,
    bytes: u64,
    synced: u64,
}

impl<W: Write> RecordWriter<W> {
    pub(super) fn begin(mut to: W, header: &FileHeader) -> io::Result<Self> {
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        let block = vec![0; BLOCK_HEAD_BYTES];
        let mut writer = Self { to, block, bytes: HEAD_BYTES as u64, synced: 0 };
        writer.push(header)?;
        writer.end_block()?;
        Ok(writer)
    }

    /// The file.
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

    /// Ends a snapshot with a block without records.
    pub(super) fn end(&mut self, at: Now) -> io::Result<()> {
        self.end_block()?;
        self.push(&at)?;
        self.end_block()
    }

    /// Writes the current block.
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

    /// Writes the current block, and syncs the file by `sync`.
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
pub(super) struct RecordReader<R> {
    from: R,
    /// Where the next block begins.
    at: u64,
    content: Vec<u8>,
}

impl<R: Read> RecordReader<R> {
    /// Reads the head, and refuses what another program or release wrote.
    pub(super) fn begin(mut from: R) -> Result<(FileHeader, Self), FileFault> {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        let is_whole = read_exactly(&mut from, HEAD_BYTES, &mut head)?;
        let magic = head.len().min(MAGIC.len());
        if head[..magic] != MAGIC[..magic] {
            return Err(FileFault::Foreign);
        }
        if !is_whole {
            return Err(FileFault::Torn { bytes: head.len() as u64 });
        }
        let version = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if version != VERSION {
            return Err(FileFault::OtherVersion(version));
        }
        let mut reader = Self::at(from, HEAD_BYTES as u64);
        let Some(_) = reader.next_block()? else {
            return Err(FileFault::Torn { bytes: HEAD_BYTES as u64 });
        };
        let (header, rest) = take(&reader.content)?;
        if rest.is_empty() {
            return Ok((header, reader));
        }
        Err(FileFault::Malformed("found more in a block than belongs there".to_owned()))
    }

    /// Reads on from a block that begins here.
    pub(super) const fn at(from: R, at: u64) -> Self {
        Self { from, at, content: Vec::new() }
    }

    /// Where the next block begins.
    pub(super) const fn position(&self) -> u64 {
        self.at
    }

    /// Reads the next block; returns its `synced`, or `None` at the end. After an error the position is
    /// unchanged.
    pub(super) fn next_block(&mut self) -> Result<Option<u64>, FileFault> {
        let mut head = Vec::with_capacity(BLOCK_HEAD_BYTES);
        if !read_exactly(&mut self.from, BLOCK_HEAD_BYTES, &mut head)? {
            let torn = FileFault::Torn { bytes: self.at + head.len() as u64 };
            return if head.is_empty() { Ok(None) } else { Err(torn) };
        }
        let (mark, length, sum) = (&head[..4], &head[4..8], &head[8..12]);
        let length = length.iter().rev().fold(0, |sum, byte| sum << 8 | usize::from(*byte));
        if mark != BLOCK || length > CONTENT_BYTES_MAX {
            return Err(FileFault::Damaged { at: self.at });
        }
        if !read_exactly(&mut self.from, length, &mut self.content)? {
            let read = (BLOCK_HEAD_BYTES + self.content.len()) as u64;
            return Err(FileFault::Torn { bytes: self.at + read });
        }
        let mut found = crc32fast::Hasher::new();
        found.update(&head[12..]);
        found.update(&self.content);
        if sum != found.finalize().to_le_bytes() {
            return Err(FileFault::Damaged { at: self.at });
        }
        self.at += (BLOCK_HEAD_BYTES + length) as u64;
        Ok(Some(head[12..].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte))))
    }

    /// The clocks of the current block, and its records.
    pub(super) fn records<T: DeserializeOwned>(&self) -> Result<(Now, Vec<T>), FileFault> {
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

/// Replaces the buffer by the next bytes; true if there were as many.
fn read_exactly(from: &mut impl Read, bytes: usize, buffer: &mut Vec<u8>) -> io::Result<bool> {
    buffer.clear();
    Ok(from.take(bytes as u64).read_to_end(buffer)? == bytes)
}

fn take<'b, T: Deserialize<'b>>(content: &'b [u8]) -> Result<(T, &'b [u8]), FileFault> {
    postcard::take_from_bytes(content).map_err(|error| FileFault::Malformed(error.to_string()))
}
