//! What an operation is made of: the requests that a server takes.

use forebay_block::{Buf, DeviceOp};
use forebay_nbd::codec::{Request as Header, command, command_flag, export_flag};

use crate::nbd::handshake::Terms;

/// Longest payload of one request, in bytes, of a server that takes longer ones.
const PAYLOAD_BYTES_MAX: u32 = 8 << 20;
/// Longest range that is zeroed by one request, in bytes.
const ZERO_BYTES_MAX: u64 = 1 << 30;
/// Zeroes are written to a server that cannot zero from a buffer of this size.
const ZERO_BUFFER_BYTES: u32 = 1 << 20;

/// One request of an operation.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// The operation's number.
    pub(crate) op: u64,
    /// Which of its requests this is.
    pub(crate) part: usize,
    /// Bits of [`command_flag`].
    flags: u16,
    /// One of [`command`].
    pub(crate) command: u16,
    offset: u64,
    pub(crate) len: u32,
    /// What a write writes; none of it is empty.
    pub(crate) data: Vec<Buf>,
}

impl Request {
    pub(crate) const fn flush(op: u64) -> Self {
        Self::bare(command::FLUSH, op)
    }

    /// What is sent last on a connection; it is not answered.
    pub(crate) const fn disconnect() -> Self {
        Self::bare(command::DISC, 0)
    }

    const fn bare(command: u16, op: u64) -> Self {
        Self { op, part: 0, flags: 0, command, offset: 0, len: 0, data: Vec::new() }
    }

    /// Whether it changes something that the server may keep in a volatile cache.
    pub(crate) const fn is_volatile(&self) -> bool {
        matches!(self.command, command::WRITE | command::WRITE_ZEROES) && self.flags & command_flag::FUA == 0
    }

    pub(crate) fn header(&self, cookie: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Header::BYTES);
        let Self { flags, command, offset, len, .. } = *self;
        Header { flags, command, cookie, offset, len }.encode(&mut bytes);
        bytes
    }
}

/// The requests of an operation, and whether a flush must follow them.
pub(crate) fn requests(terms: &Terms, op: u64, asked: DeviceOp) -> (Vec<Request>, bool) {
    let payload_max = terms.sizes.maximum.min(PAYLOAD_BYTES_MAX) / 4096 * 4096;
    let request = |command, flags, offset, len: u64, data| {
        // The parts that are cut below are shorter than 4 GiB.
        Request { op, part: 0, flags, command, offset, len: len as u32, data }
    };
    let mut all = Vec::new();
    let mut then_flush = false;
    match asked {
        DeviceOp::Flush => all.push(Request::flush(op)),
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
    for (part, request) in all.iter_mut().enumerate() {
        request.part = part;
    }
    (all, then_flush)
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

    fn terms(flags: u16, maximum: u32) -> Terms {
        Terms::new(1 << 30, flags, BlockSizes { minimum: 512, preferred: 4096, maximum })
    }

    #[test]
    fn long_operations_are_cut_and_nothing_is_lost() {
        let terms = terms(export_flag::SEND_FUA, 8192);
        let data: Vec<u8> = (0..20 * 1024_u32).map(|i| (i / 512) as u8).collect();
        let bufs = data.chunks(1536).map(Buf::copy_of).collect();
        let (all, then_flush) = requests(&terms, 3, DeviceOp::Write { offset: 4096, bufs, durable: true });
        assert!(!then_flush);
        let shape: Vec<_> = all.iter().map(|r| (r.part, r.offset, r.len, r.is_volatile())).collect();
        assert_eq!(shape, [(0, 4096, 8192, false), (1, 12288, 8192, false), (2, 20480, 4096, false)]);
        let sent: Vec<u8> = all.iter().flat_map(|r| r.data.iter().flat_map(|b| b.to_vec())).collect();
        assert_eq!(sent, data);

        let (all, _) = requests(&terms, 3, DeviceOp::Read { offset: 512, len: 8704 });
        assert_eq!(all.iter().map(|r| (r.offset, r.len)).collect::<Vec<_>>(), [(512, 8192), (8704, 512)]);
    }

    #[test]
    fn what_a_server_lacks_is_made_of_what_it_has() {
        let poor = terms(0, 1 << 20);
        let bufs = vec![Buf::zeroed(512)];
        let (all, then_flush) = requests(&poor, 0, DeviceOp::Write { offset: 0, bufs, durable: true });
        assert!(then_flush && all.len() == 1 && all[0].is_volatile());
        let zero = DeviceOp::Zero { offset: 0, len: (1 << 20) + 512, unmap: true };
        let (all, _) = requests(&poor, 0, zero.clone());
        assert!(all.iter().all(|r| r.command == command::WRITE) && all.len() == 2 && all[1].len == 512);
        let (all, _) = requests(&terms(export_flag::SEND_WRITE_ZEROES, 1 << 20), 0, zero);
        assert!(all.len() == 1 && all[0].command == command::WRITE_ZEROES && all[0].is_volatile());
        let long = DeviceOp::Zero { offset: 0, len: 5 << 30, unmap: false };
        assert_eq!(requests(&terms(export_flag::SEND_WRITE_ZEROES, 4096), 0, long).0.len(), 5);
    }
}
