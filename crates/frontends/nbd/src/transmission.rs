//! What a request asks of the volume, and how the volume's answer is told: the rules of the transmission phase,
//! without I/O.
//!
//! What the server chose where the protocol leaves a choice:
//! - Requests of no bytes succeed at once and do nothing.
//! - Whole sectors of 512 bytes are served also where the export's logical block, which is the least that it advertises, is
//!   larger: a client that did not ask for block sizes need not know of it.
//! - A request that is malformed, unaligned to 512 bytes or beyond the end is refused by itself (EINVAL; ENOSPC for
//!   writes past the end) and the connection goes on.
//! - `WRITE_ZEROES` with the fast-zero flag is always refused with ENOTSUP: whether zeroing is faster than writing
//!   depends on the cache's state and on the backing, and a client that asks (such as `qemu-img convert`, which would
//!   zero a whole volume in advance) has a better plan for "no" than for a slow "yes".
//! - `CACHE` is not advertised: the volume decides what its cache keeps.
//! - A block status answer is short where there is much to tell: the client asks again for what lies behind.
//! - A structured read is answered by one chunk, so that "don't fragment" always holds.

use forebay_block::{Allocation, Buf, IoError, Op, Reply, SECTOR_BYTES, STATUS_EXTENTS_MAX, StatusExtent};

use crate::codec::{
    BASE_ALLOCATION_ID, ChunkHeader, ChunkPayload, Extent, NbdError, Request, SimpleReply, allocation_flag,
    chunk, chunk_flag, command, command_flag,
};
use crate::negotiation::Choice;

/// What the negotiation fixed for a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Session {
    pub(crate) size_bytes: u64,
    pub(crate) read_only: bool,
    pub(crate) request_bytes_max: usize,
    pub(crate) structured: bool,
    pub(crate) base_allocation: bool,
}

impl From<&Choice> for Session {
    fn from(choice: &Choice) -> Self {
        Self {
            size_bytes: choice.export.size_bytes,
            read_only: choice.export.read_only,
            request_bytes_max: choice.export.request_bytes_max,
            structured: choice.structured,
            base_allocation: choice.base_allocation,
        }
    }
}

/// Why a request is not passed on to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) error: NbdError,
    pub(crate) reason: &'static str,
}

/// What is to be done about a request.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// Answer with an error. The data of a write follows nevertheless and is skipped.
    Refuse(Refusal),
    /// Answer with success.
    Nothing,
    /// Pass on to the volume.
    Submit(Op),
    /// Read the data, then pass on to the volume as a write.
    Write {
        /// Durable before it is answered.
        fua: bool,
    },
    /// Finish what is under way and close.
    Disconnect,
}

const fn refuse(error: NbdError, reason: &'static str) -> Result<(), Refusal> {
    Err(Refusal { error, reason })
}

impl Session {
    /// Decides about a request.
    pub(crate) fn judge(&self, request: &Request) -> Verdict {
        if request.command == command::DISC {
            return Verdict::Disconnect;
        }
        if let Err(refusal) = self.check(request) {
            return Verdict::Refuse(refusal);
        }
        let (offset, len) = (request.offset, u64::from(request.len));
        let fua = request.has(command_flag::FUA);
        match request.command {
            command::FLUSH => Verdict::Submit(Op::Flush),
            _ if len == 0 => Verdict::Nothing,
            command::READ => Verdict::Submit(Op::Read { offset, len: request.len as usize }),
            command::WRITE => Verdict::Write { fua },
            command::TRIM => Verdict::Submit(Op::Zero { offset, len, unmap: true, fua }),
            command::WRITE_ZEROES => {
                let unmap = !request.has(command_flag::NO_HOLE);
                Verdict::Submit(Op::Zero { offset, len, unmap, fua })
            }
            _ => {
                let extents_max = if request.has(command_flag::REQ_ONE) { 1 } else { STATUS_EXTENTS_MAX };
                Verdict::Submit(Op::Status { offset, len, extents_max })
            }
        }
    }

    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let allowed = match request.command {
            command::READ if self.structured => command_flag::DF,
            command::READ | command::WRITE | command::FLUSH | command::TRIM => 0,
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS => command_flag::REQ_ONE,
            _ => return refuse(NbdError::EINVAL, "command is not supported"),
        };
        if request.flags & !(allowed | command_flag::FUA) != 0 {
            return refuse(NbdError::EINVAL, "command does not take these flags");
        }
        if request.command == command::FLUSH {
            return Ok(());
        }
        let writes = matches!(request.command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if writes && self.read_only {
            return refuse(NbdError::EPERM, "the volume is read-only");
        }
        self.check_range(request)?;
        if request.command == command::BLOCK_STATUS {
            if !self.base_allocation {
                return refuse(NbdError::EINVAL, "no metadata context was negotiated");
            }
            if request.len == 0 {
                return refuse(NbdError::EINVAL, "block status of no bytes");
            }
        }
        if request.has(command_flag::FAST_ZERO) && request.command == command::WRITE_ZEROES {
            return refuse(NbdError::ENOTSUP, "zeroing is not known to be faster than writing");
        }
        Ok(())
    }

    fn check_range(&self, request: &Request) -> Result<(), Refusal> {
        let len = u64::from(request.len);
        if !request.offset.is_multiple_of(SECTOR_BYTES) || !len.is_multiple_of(SECTOR_BYTES) {
            return refuse(NbdError::EINVAL, "request is not made of whole 512-byte sectors");
        }
        let has_data = matches!(request.command, command::READ | command::WRITE);
        if has_data && request.len as usize > self.request_bytes_max {
            return refuse(NbdError::EINVAL, "request is longer than the export's maximum block size");
        }
        if request.offset.checked_add(len).is_none_or(|end| end > self.size_bytes) {
            let stores = matches!(request.command, command::WRITE | command::WRITE_ZEROES);
            let error = if stores { NbdError::ENOSPC } else { NbdError::EINVAL };
            return refuse(error, "request reaches past the end of the volume");
        }
        Ok(())
    }

    /// The bytes that tell the volume's answer to `request`, the data that follows them, and whether it is an error.
    pub(crate) fn reply(
        &self,
        request: &Request,
        answer: Result<Reply, IoError>,
    ) -> (Vec<u8>, Option<Buf>, bool) {
        let told = match (request.command, answer) {
            (_, Err(error)) => {
                return (self.error(request, error.kind.into(), &error.to_string()), None, true);
            }
            (command::READ, Ok(Reply::Data(data))) if data.len() == request.len as usize => {
                Some((self.data_head(request), Some(data)))
            }
            (command::BLOCK_STATUS, Ok(Reply::Status(extents))) => {
                status(request, &extents).map(|bytes| (bytes, None))
            }
            (command::READ | command::BLOCK_STATUS, Ok(_)) => None,
            (_, Ok(_)) => Some((self.success(request), None)),
        };
        match told {
            Some((head, data)) => (head, data, false),
            None => (self.error(request, NbdError::EIO, "the volume gave a wrong answer"), None, true),
        }
    }

    /// Success without data. Structured reads of no bytes end in an empty chunk, as a simple reply to them is not allowed.
    pub(crate) fn success(&self, request: &Request) -> Vec<u8> {
        if self.structured && request.command == command::READ {
            return chunk_of(request, chunk::NONE, &[]);
        }
        let mut out = Vec::with_capacity(SimpleReply::BYTES);
        SimpleReply { error: NbdError::OK, cookie: request.cookie }.encode(&mut out);
        out
    }

    /// Failure; where the client understands structured replies, with the reason in words.
    pub(crate) fn error(&self, request: &Request, error: NbdError, reason: &str) -> Vec<u8> {
        if self.structured {
            let mut payload = Vec::new();
            ChunkPayload::encode_error(error, reason, &mut payload);
            return chunk_of(request, chunk::ERROR, &payload);
        }
        let mut out = Vec::with_capacity(SimpleReply::BYTES);
        SimpleReply { error, cookie: request.cookie }.encode(&mut out);
        out
    }

    fn data_head(&self, request: &Request) -> Vec<u8> {
        if !self.structured {
            return self.success(request);
        }
        let len = request.len + ChunkPayload::DATA_OFFSET_BYTES as u32;
        let mut out = Vec::with_capacity(ChunkHeader::BYTES + ChunkPayload::DATA_OFFSET_BYTES);
        let (flags, cookie) = (chunk_flag::DONE, request.cookie);
        ChunkHeader { flags, kind: chunk::OFFSET_DATA, cookie, len }.encode(&mut out);
        out.extend_from_slice(&request.offset.to_be_bytes());
        out
    }
}

/// The only chunk of a reply.
fn chunk_of(request: &Request, kind: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(ChunkHeader::BYTES + payload.len());
    let len = payload.len() as u32;
    ChunkHeader { flags: chunk_flag::DONE, kind, cookie: request.cookie, len }.encode(&mut out);
    out.extend_from_slice(payload);
    out
}

/// A block status reply: neighbours that are allocated alike become one extent, and none reaches past the range
/// asked for. `None` if the volume's answer says nothing about the range's start.
fn status(request: &Request, extents: &[StatusExtent]) -> Option<Vec<u8>> {
    let mut left = request.len;
    let mut told: Vec<Extent> = Vec::new();
    for extent in extents {
        let flags = match extent.allocation {
            Allocation::Data => 0,
            Allocation::Hole => allocation_flag::HOLE | allocation_flag::ZERO,
        };
        let len = u32::try_from(extent.len).unwrap_or(u32::MAX).min(left);
        left -= len;
        let full = told.len() == STATUS_EXTENTS_MAX;
        match told.last_mut() {
            _ if len == 0 => {}
            Some(last) if last.flags == flags => last.len += len,
            _ if full => break,
            _ => told.push(Extent { len, flags }),
        }
    }
    if request.has(command_flag::REQ_ONE) {
        told.truncate(1);
    }
    if told.is_empty() {
        return None;
    }
    let mut payload = Vec::with_capacity(4 + told.len() * 8);
    ChunkPayload::encode_status(BASE_ALLOCATION_ID, &told, &mut payload);
    Some(chunk_of(request, chunk::BLOCK_STATUS, &payload))
}

#[cfg(test)]
mod tests;
