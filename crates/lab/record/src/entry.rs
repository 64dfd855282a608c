//! What a record is made of, byte by byte; `docs/design/recorder.md` has the tables.

use std::fmt;
use std::io;
use std::str::FromStr;

use crc_fast::{CrcAlgorithm, Digest, checksum};

/// First bytes of a record.
pub(crate) const FILE_MAGIC: [u8; 8] = *b"FBRECORD";
/// First bytes of an entry.
pub(crate) const ENTRY_MAGIC: [u8; 4] = *b"FBre";
/// Version of the format. Other versions are refused.
pub(crate) const VERSION: u32 = 1;
/// Bytes of the file's head, and of each entry's.
pub(crate) const HEAD_BYTES: usize = 64;
/// Bytes of data that an entry may carry; a volume's longest write is far shorter.
pub(crate) const PAYLOAD_BYTES_MAX: u64 = 1 << 30;

/// What of a volume changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The cache.
    Cache,
    /// The backing.
    Backing,
    /// The file beside the backing that has its label.
    Label,
    /// The journal on the backing's side.
    Journal,
}

impl Role {
    /// Every role, in the order of their numbers.
    pub const ALL: [Self; 4] = [Self::Cache, Self::Backing, Self::Label, Self::Journal];

    /// One word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cache => "cache",
            Self::Backing => "backing",
            Self::Label => "label",
            Self::Journal => "journal",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|r| r.as_str() == text);
        known.ok_or_else(|| "a device is cache, backing, label or journal".into())
    }
}

/// What an entry tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The device was opened.
    Open {
        /// Its size.
        size_bytes: u64,
        /// Its name, for people.
        name: String,
    },
    /// A write begins.
    Write {
        /// Number of the operation.
        op: u64,
        /// First byte.
        offset: u64,
        /// It ends only when it is durable.
        durable: bool,
        /// What is written.
        data: Vec<u8>,
    },
    /// A range is about to be made zero.
    Zero {
        /// Number of the operation.
        op: u64,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Its space may be given back.
        unmap: bool,
    },
    /// A flush begins.
    Flush {
        /// Number of the operation.
        op: u64,
    },
    /// An operation has ended.
    End {
        /// Number of the operation.
        op: u64,
        /// 0, or the error that it ended with.
        errno: u32,
    },
}

/// One entry of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Counts from 1, without gaps.
    pub number: u64,
    /// When, in nanoseconds of the monotonic clock; never falls.
    pub time_ns: u64,
    /// Of which device.
    pub role: Role,
    /// What.
    pub action: Action,
}

const DURABLE: u8 = 1;
const UNMAP: u8 = 2;

/// The fixed part of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) kind: u8,
    pub(crate) role: u8,
    pub(crate) flags: u8,
    pub(crate) number: u64,
    pub(crate) time_ns: u64,
    pub(crate) op: u64,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) payload_bytes: u32,
    pub(crate) payload_crc: u32,
}

fn crc32c(bytes: &[u8]) -> u32 {
    checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// CRC-32C of what is in pieces.
pub(crate) fn crc32c_of(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    parts.iter().for_each(|part| digest.update(part));
    digest.finalize() as u32
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut word = [0; N];
    word.copy_from_slice(&bytes[at..at + N]);
    word
}

impl Head {
    pub(crate) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&ENTRY_MAGIC);
        [bytes[4], bytes[5], bytes[6]] = [self.kind, self.role, self.flags];
        let words = [self.number, self.time_ns, self.op, self.offset, self.len];
        for (word, place) in words.iter().zip(bytes[8..48].chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes[48..52].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// `None` if this is no entry, or not a whole one.
    pub(crate) fn decode(bytes: &[u8; HEAD_BYTES]) -> Option<Self> {
        let crc = u32::from_le_bytes(word(bytes, 60));
        if bytes[..4] != ENTRY_MAGIC || crc32c(&bytes[..60]) != crc {
            return None;
        }
        let at = |at| u64::from_le_bytes(word(bytes, at));
        Some(Self {
            kind: bytes[4],
            role: bytes[5],
            flags: bytes[6],
            number: at(8),
            time_ns: at(16),
            op: at(24),
            offset: at(32),
            len: at(40),
            payload_bytes: u32::from_le_bytes(word(bytes, 48)),
            payload_crc: u32::from_le_bytes(word(bytes, 52)),
        })
    }

    /// The head of what an operation begins or ends with; `data` are the parts of what a write carries.
    pub(crate) fn of(role: Role, what: Brief, data: &[&[u8]]) -> Self {
        let payload_bytes: usize = data.iter().map(|part| part.len()).sum();
        let head = Self {
            role: role as u8,
            payload_bytes: payload_bytes as u32,
            payload_crc: crc32c_of(data),
            ..Self::default()
        };
        match what {
            Brief::Open { size_bytes } => Self { kind: 1, len: size_bytes, ..head },
            Brief::Write { op, offset, durable } => {
                let flags = if durable { DURABLE } else { 0 };
                Self { kind: 2, op, offset, len: payload_bytes as u64, flags, ..head }
            }
            Brief::Zero { op, offset, len, unmap } => {
                Self { kind: 3, op, offset, len, flags: if unmap { UNMAP } else { 0 }, ..head }
            }
            Brief::Flush { op } => Self { kind: 4, op, ..head },
            Brief::End { op, errno } => Self { kind: 5, op, len: u64::from(errno), ..head },
        }
    }

    /// The entry with this head and payload.
    pub(crate) fn entry(self, payload: Vec<u8>) -> io::Result<Entry> {
        let bad =
            |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("entry {} {what}", self.number));
        if crc32c(&payload) != self.payload_crc {
            return Err(bad("does not match its checksum"));
        }
        let role =
            Role::ALL.get(usize::from(self.role)).copied().ok_or_else(|| bad("is of no known device"))?;
        let (op, offset, len) = (self.op, self.offset, self.len);
        if op > self.number {
            return Err(bad("is of an operation that cannot have begun"));
        }
        let data_bytes = match self.kind {
            2 => len,
            1 => u64::from(self.payload_bytes),
            _ => 0,
        };
        if u64::from(self.payload_bytes) != data_bytes {
            return Err(bad("carries more or less than its data"));
        }
        let action = match self.kind {
            1 => Action::Open { size_bytes: len, name: String::from_utf8_lossy(&payload).into_owned() },
            2 => Action::Write { op, offset, durable: self.flags & DURABLE != 0, data: payload },
            3 => Action::Zero { op, offset, len, unmap: self.flags & UNMAP != 0 },
            4 => Action::Flush { op },
            5 => {
                let errno = u32::try_from(len).map_err(|_| bad("ends with no known error"))?;
                Action::End { op, errno }
            }
            _ => return Err(bad("is of no known kind")),
        };
        Ok(Entry { number: self.number, time_ns: self.time_ns, role, action })
    }
}

/// An [`Action`] whose data lies elsewhere.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Brief {
    Open { size_bytes: u64 },
    Write { op: u64, offset: u64, durable: bool },
    Zero { op: u64, offset: u64, len: u64, unmap: bool },
    Flush { op: u64 },
    End { op: u64, errno: u32 },
}

/// The head of the file.
pub(crate) fn file_head(time_ns: u64, wall_ns: u64) -> [u8; HEAD_BYTES] {
    let mut bytes = [0; HEAD_BYTES];
    bytes[..8].copy_from_slice(&FILE_MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[16..24].copy_from_slice(&time_ns.to_le_bytes());
    bytes[24..32].copy_from_slice(&wall_ns.to_le_bytes());
    let crc = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// Refuses what is not the head of a record of this version.
pub(crate) fn check_file_head(bytes: &[u8; HEAD_BYTES]) -> io::Result<()> {
    let refused = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
    if bytes[..8] != FILE_MAGIC {
        return refused("this is no record of devices".into());
    }
    let version = u32::from_le_bytes(word(bytes, 8));
    if version != VERSION {
        return refused(format!("the record is of version {version}, this program reads version {VERSION}"));
    }
    if crc32c(&bytes[..60]) != u32::from_le_bytes(word(bytes, 60)) {
        return refused("the head of the record does not match its checksum".into());
    }
    Ok(())
}
