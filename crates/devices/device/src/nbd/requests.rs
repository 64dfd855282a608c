//! What an operation is made of: the requests that a server takes.

use forebay_block::{Buf, DeviceOp};
use forebay_nbd::codec::{Request as Header, command, command_flag, export_flag};

use crate::nbd::handshake::Terms;
use crate::remote::{self, Effect, Parts};

/// Longest payload of one request, in bytes, of a server that takes longer ones.
const PAYLOAD_BYTES_MAX: u32 = 8 << 20;
/// Longest range that is zeroed by one request, in bytes.
const ZERO_BYTES_MAX: u64 = 1 << 30;
/// Zeroes are written to a server that cannot zero from a buffer of this size.
const ZERO_BUFFER_BYTES: u32 = 1 << 20;

/// One request of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Bits of [`command_flag`].
    flags: u16,
    /// One of [`command`].
    pub(crate) command: u16,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// What a write writes; none of it is empty.
    pub(crate) data: Vec<Buf>,
}

impl Request {
    /// What is sent last on a connection; it is not answered.
    pub(crate) const fn disconnect() -> Self {
        Self::bare(command::DISC)
    }

    const fn bare(command: u16) -> Self {
        Self { flags: 0, command, offset: 0, len: 0, data: Vec::new() }
    }

    pub(crate) fn header(&self, cookie: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Header::BYTES);
        let Self { flags, command, offset, len, .. } = *self;
        Header { flags, command, cookie, offset, len }.encode(&mut bytes);
        bytes
    }
}

impl remote::Request for Request {
    fn flush() -> Self {
        Self::bare(command::FLUSH)
    }

    fn effect(&self) -> Effect {
        match self.command {
            command::READ => Effect::Reads,
            command::FLUSH => Effect::Flushes,
            _ if self.flags & command_flag::FUA == 0 => Effect::ChangesVolatile,
            _ => Effect::ChangesDurably,
        }
    }
}

/// What an operation is made of.
pub(crate) fn parts_of(terms: &Terms, asked: DeviceOp) -> Parts<Request> {
    let payload_max = terms.sizes.maximum.min(PAYLOAD_BYTES_MAX) / 4096 * 4096;
    let request = |command, flags, offset, len: u64, data| {
        // The parts that are cut below are shorter than 4 GiB.
        Request { flags, command, offset, len: len as u32, data }
    };
    let mut all = Vec::new();
    let mut then_flush = false;
    let reads = matches!(asked, DeviceOp::Read { .. });
    match asked {
        DeviceOp::Flush => all.push(Request::bare(command::FLUSH)),
        DeviceOp::Read { offset, len } => {
            for (at, part) in parts(len as u64, u64::from(payload_max)) {
                all.push(request(command::READ, 0, offset + at, part, Vec::new()));
            }
        }
        DeviceOp::Write { offset, bufs, durable } => {
            let fua = durable && terms.offers(export_flag::SEND_FUA);
            then_flush = durable && !fua;
            let flags = if fua { command_flag::FUA } else { 0 };
            let mut at = offset;
            for data in cut(bufs, payload_max as usize) {
                let len = data.iter().map(|buf| buf.len() as u64).sum();
                all.push(request(command::WRITE, flags, at, len, data));
                at += len;
            }
        }
        DeviceOp::Zero { offset, len, unmap } if terms.offers(export_flag::SEND_WRITE_ZEROES) => {
            let flags = if unmap { 0 } else { command_flag::NO_HOLE };
            for (at, part) in parts(len, ZERO_BYTES_MAX) {
                all.push(request(command::WRITE_ZEROES, flags, offset + at, part, Vec::new()));
            }
        }
        // It is refused before it comes here.
        DeviceOp::Commit(_) => {}
        DeviceOp::Zero { offset, len, .. } => {
            let buffer = ZERO_BUFFER_BYTES.min(payload_max);
            let zeroes = Buf::zeroed(buffer as usize);
            for (at, part) in parts(len, u64::from(buffer)) {
                let data = vec![zeroes.slice(0, part as usize)];
                all.push(request(command::WRITE, 0, offset + at, part, data));
            }
        }
    }
    Parts { reads, requests: all, then_flush }
}

/// Where the parts of so many bytes begin, and how long they are.
fn parts(len: u64, part_max: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..len.div_ceil(part_max)).map(move |n| (n * part_max, (len - n * part_max).min(part_max)))
}

/// The same bytes in parts of at most so many.
fn cut(bufs: Vec<Buf>, part_max: usize) -> Vec<Vec<Buf>> {
    let mut all = Vec::new();
    let (mut part, mut part_len) = (Vec::new(), 0);
    for buf in bufs {
        let mut at = 0;
        while at < buf.len() {
            let len = (buf.len() - at).min(part_max - part_len);
            part.push(buf.slice(at, len));
            (at, part_len) = (at + len, part_len + len);
            if part_len == part_max {
                all.push(std::mem::take(&mut part));
                part_len = 0;
            }
        }
    }
    if !part.is_empty() {
        all.push(part);
    }
    all
}

#[cfg(test)]
mod tests {
    use forebay_nbd::codec::BlockSizes;

    use super::*;
    use crate::remote::Request as _;

    fn terms(flags: u16, maximum: u32) -> Terms {
        Terms::new(1 << 30, flags, BlockSizes { minimum: 512, preferred: 4096, maximum })
    }

    #[test]
    fn long_operations_are_cut_and_nothing_is_lost() {
        let terms = terms(export_flag::SEND_FUA, 8192);
        let data: Vec<u8> = (0..20 * 1024_u32).map(|i| (i / 512) as u8).collect();
        let bufs = data.chunks(1536).map(Buf::copy_of).collect();
        let write = parts_of(&terms, DeviceOp::Write { offset: 4096, bufs, durable: true });
        assert!(!write.then_flush && !write.reads);
        let all = write.requests;
        let shape: Vec<_> = all.iter().map(|r| (r.offset, r.len)).collect();
        assert_eq!(shape, [(4096, 8192), (12288, 8192), (20480, 4096)]);
        assert!(all.iter().all(|r| r.effect() == Effect::ChangesDurably));
        let sent: Vec<u8> = all.iter().flat_map(|r| r.data.iter().flat_map(|b| b.to_vec())).collect();
        assert_eq!(sent, data);

        let read = parts_of(&terms, DeviceOp::Read { offset: 512, len: 8704 });
        assert!(read.reads && read.requests.iter().all(|r| r.effect() == Effect::Reads));
        assert_eq!(
            read.requests.iter().map(|r| (r.offset, r.len)).collect::<Vec<_>>(),
            [(512, 8192), (8704, 512)]
        );
    }

    #[test]
    fn what_a_server_lacks_is_made_of_what_it_has() {
        let poor = terms(0, 1 << 20);
        let bufs = vec![Buf::zeroed(512)];
        let Parts { requests, then_flush, .. } =
            parts_of(&poor, DeviceOp::Write { offset: 0, bufs, durable: true });
        assert!(then_flush && requests.len() == 1 && requests[0].effect() == Effect::ChangesVolatile);
        let zero = DeviceOp::Zero { offset: 0, len: (1 << 20) + 512, unmap: true };
        let all = parts_of(&poor, zero.clone()).requests;
        assert!(all.iter().all(|r| r.command == command::WRITE) && all.len() == 2 && all[1].len == 512);
        let all = parts_of(&terms(export_flag::SEND_WRITE_ZEROES, 1 << 20), zero).requests;
        assert!(all.len() == 1 && all[0].command == command::WRITE_ZEROES);
        assert_eq!(all[0].effect(), Effect::ChangesVolatile);
        let long = DeviceOp::Zero { offset: 0, len: 5 << 30, unmap: false };
        assert_eq!(parts_of(&terms(export_flag::SEND_WRITE_ZEROES, 4096), long).requests.len(), 5);
    }
}
