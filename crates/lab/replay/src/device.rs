//! A modelled device, and of what was written as much as the engine ever reads back.

use std::collections::HashMap;

use forebay_block::{Buf, BufMut, DeviceOp, Nanos};
use forebay_emulate::{BadSetting, Model, Operation, Settings};
use forebay_engine::IoId;

/// Data is kept in pieces of this size.
const PIECE: usize = 512;

/// See the module's documentation.
pub(crate) struct Device {
    model: Model,
    /// Reads under way.
    reads: HashMap<IoId, (u64, usize)>,
    /// What was written; zeroes are not kept.
    pieces: Option<HashMap<u64, Buf>>,
    ended: Vec<(u64, Nanos)>,
    /// Bytes of all writes.
    pub(crate) written: u64,
}

impl Device {
    /// A device of `bytes` bytes; if it does not `keep` data, it reads as zeroes.
    pub(crate) fn new(settings: &Settings, bytes: u64, keep: bool) -> Result<Self, BadSetting> {
        Ok(Self {
            model: Model::new(settings, bytes)?,
            reads: HashMap::new(),
            pieces: keep.then(HashMap::new),
            ended: Vec::new(),
            written: 0,
        })
    }

    pub(crate) fn submit(&mut self, id: IoId, op: &DeviceOp, now: Nanos) {
        self.model.submit(id.0, Operation::from(op), now);
        match op {
            DeviceOp::Read { offset, len } => {
                self.reads.insert(id, (*offset, *len));
            }
            DeviceOp::Write { offset, bufs, .. } => {
                self.written += op.write_bytes();
                self.keep(*offset, bufs);
            }
            DeviceOp::Flush | DeviceOp::Zero { .. } | DeviceOp::Commit(_) => {}
        }
    }

    fn keep(&mut self, offset: u64, bufs: &[Buf]) {
        let Some(pieces) = &mut self.pieces else { return };
        let mut at = offset / PIECE as u64;
        for buf in bufs {
            for start in (0..buf.len()).step_by(PIECE) {
                match buf[start..].iter().take(PIECE).any(|byte| *byte != 0) {
                    true => pieces.insert(at, buf.slice(start, PIECE.min(buf.len() - start))),
                    false => pieces.remove(&at),
                };
                at += 1;
            }
        }
    }

    fn read(&self, offset: u64, len: usize) -> Buf {
        let mut data = BufMut::zeroed(len);
        if let Some(pieces) = &self.pieces {
            for (at, piece) in (offset / PIECE as u64..).zip(data.chunks_mut(PIECE)) {
                if let Some(kept) = pieces.get(&at) {
                    piece.copy_from_slice(&kept[..piece.len()]);
                }
            }
        }
        data.freeze()
    }

    /// When something may end.
    pub(crate) fn next_event(&self) -> Option<Nanos> {
        self.model.next_event()
    }

    /// What has ended by `now`, with what was read.
    pub(crate) fn ended(&mut self, now: Nanos) -> Vec<(IoId, Option<Buf>)> {
        self.model.poll(now, &mut self.ended);
        let ended: Vec<_> = self.ended.drain(..).map(|(tag, _)| IoId(tag)).collect();
        ended
            .into_iter()
            .map(|id| {
                let range = self.reads.remove(&id);
                (id, range.map(|(offset, len)| self.read(offset, len)))
            })
            .collect()
    }
}
