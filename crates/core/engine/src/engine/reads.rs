//! Reads, gatherings and questions for what is cached: what the coordinator does with what they say. See [`crate::reading`].

use forebay_block::{BlockNo, Buf, DeviceResult, Origin, Reply};
use forebay_policy::Issuer;

use crate::client::allocation;
use crate::engine::{Engine, IoOwner};
use crate::interface::{Effect, PartKey, RequestId};
use crate::locks::BlockRange;
use crate::map::member::Member;
use crate::map::segments::SlotRef;
use crate::reading::gathers::Wanted;
use crate::reading::pieces::PieceKey;
use crate::reading::reads::Reader;
use crate::reading::{Step, Told};

impl Engine {
    pub(super) fn read_request(&mut self, id: RequestId, (offset, len): (u64, usize), origin: Origin) {
        if len == 0 {
            self.effects.push(Effect::Reply { id, result: Ok(Reply::Data(Buf::zeroed(0))) });
            return;
        }
        let issuer = Issuer::of(&origin, false).waits();
        let step = self.reading.read((Reader::Client(id), issuer), (offset, len), &mut self.map);
        self.reading_goes_on(step);
    }

    /// Reads one whole block on behalf of a part that covers it only partly.
    pub(super) fn read_base(&mut self, part: PartKey, block: BlockNo, is_first: bool) {
        let bytes = (block.offset(), self.bytes_within(block, 1) as usize);
        let issuer = self.requests.issuer_of(part).waits();
        let step = self.reading.read((Reader::Base { part, is_first }, issuer), bytes, &mut self.map);
        self.reading_goes_on(step);
    }

    /// The slot's version.
    pub(super) fn member(&self, slot: SlotRef) -> Member {
        self.map.member(slot, &self.layout)
    }

    /// Reads the members; their segments are pinned.
    pub(super) fn gather(&mut self, wanted: Wanted, members: Vec<Member>) {
        let step = self.reading.gather(wanted, members);
        self.reading_goes_on(step);
    }

    pub(super) fn piece_read_done(&mut self, key: PieceKey, result: DeviceResult) {
        let elsewhere = self.reading.last_resort(key).and_then(|(block, seq)| self.journal.copy(block, seq));
        let step = self.reading.ended(key, result, elsewhere, &mut self.map);
        self.reading_goes_on(step);
    }

    fn reading_goes_on(&mut self, step: Step) {
        let Step { seen, unreadable, asked, told } = step;
        self.figures.read_bytes_hit += seen.hit_bytes;
        self.figures.read_bytes_missed += seen.missed_bytes;
        self.figures.cache_errors += seen.cache_errors;
        self.figures.backing_errors += seen.backing_errors;
        self.figures.checksum_failures += seen.checksum_failures;
        if let Some(block) = unreadable {
            self.forget_clean(BlockRange::new(block, 1));
        }
        for asked in asked {
            self.io(asked.role, asked.op, asked.class, IoOwner::Piece(asked.key));
        }
        match told {
            Some(Told::Read(Reader::Base { part, is_first }, result)) => {
                self.base_read(part, is_first, result);
            }
            Some(Told::Read(Reader::Client(id), result)) => {
                match result.is_ok() {
                    true => self.figures.reads += 1,
                    false => self.figures.errors += 1,
                }
                self.effects.push(Effect::Reply { id, result: result.map(Reply::Data) });
            }
            Some(Told::Gathered(Wanted::Run(run), result)) => self.destage_gathered(run, result),
            Some(Told::Gathered(Wanted::Group(first), result)) => self.group_gathered(first, result),
            None => {}
        }
    }

    /// Cached blocks are data; of the others the host asks the backing.
    pub(super) fn status_request(&mut self, id: RequestId, offset: u64, len: u64, extents_max: usize) {
        let extents = allocation::extents(&self.map, (offset, len), extents_max, self.planted);
        self.effects.push(Effect::Reply { id, result: Ok(Reply::Status(extents)) });
    }
}
