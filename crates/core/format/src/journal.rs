//! The journal on the backing's side: groups of blocks that reach the backing wholly or not at all (P4;
//! `docs/design/promises.md`, Write policies).
//!
//! ```text
//!  0        4 KiB     8 KiB                                                     ring_bytes behind that
//!  ├ head, copy 0 ┼ copy 1 ┼ · · free · · ┼ group n ┼ group n+1 ┼ group n+2 ┼ · · free · · ┤
//!                                         tail (applied)                     head (committed)
//!  a group:  ├ descriptor: what it is as of, blocks, checksums ┼ data block ┼ data block ┼ · · · ┤
//! ```
//!
//! A group counts once the head says so: it is written and flushed, then the head is written durably with the group in it,
//! then the group is applied in place, then the head leaves it behind. [`crate::replay`] does again what a crash cut short.
//!
//! The last group of a volume that shares its points with others ([`crate::shared_point`]) may be *prepared* first: it lies behind
//! `head`, durable, and is not applied before it is known that all members have theirs.

use forebay_block::{BLOCK_BYTES, BlockNo, Buf, BufMut, Seq};

use crate::FormatError;
use crate::checksum::crc_with_hole;
use crate::cursor::{Reader, Writer, text_field, text_of};
use crate::identities::Identities;
use crate::label::{Label, LabelState};
use crate::shared_point::{COMMON_NAMES_BYTES, Common};

/// Version of groups, and of heads that know no consistency group.
pub const JOURNAL_VERSION: u32 = 1;
/// Version of heads that know one ([`Common`]).
pub const JOURNAL_VERSION_COMMON: u32 = 2;
/// Bytes of one copy of the head; what it says lies in its first 512.
pub const JOURNAL_HEAD_BYTES: u64 = 4096;
/// Where the ring with the groups begins.
pub const JOURNAL_RING_OFFSET: u64 = 2 * JOURNAL_HEAD_BYTES;
/// Fixed part of a group's descriptor, before its entries.
pub const GROUP_FIXED_BYTES: usize = 256;
/// One entry of a group's descriptor.
pub const GROUP_ENTRY_BYTES: usize = 24;
/// Most entries of one group.
pub const GROUP_ENTRIES_MAX: usize = 1 << 16;
/// Longest name of a consistency point, in bytes.
pub const POINT_LABEL_BYTES: usize = 64;

const HEAD_MAGIC: &[u8; 8] = b"FBJOURN\0";
const GROUP_MAGIC: &[u8; 8] = b"FBGROUP\0";
const CRC_AT: usize = 12;

/// What the backing is as of, once a group has been applied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    /// Number of the group, counted since the cache was made; 0 before the first.
    pub group: u64,
    /// Everything in log records up to this one.
    pub seq: Seq,
    /// Everything acknowledged before this wall-clock time, nanoseconds since 1970.
    pub time_ns: u64,
    /// Number of the consistency point at which the group ends, or 0.
    pub point: u64,
    /// That point's name.
    pub label: String,
}

impl Moment {
    fn write(&self, w: &mut Writer<'_>) {
        w.u64(self.group);
        w.u64(self.seq.0);
        w.u64(self.time_ns);
        w.u64(self.point);
        w.bytes(&text_field::<POINT_LABEL_BYTES>(&self.label));
    }

    fn read(r: &mut Reader<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            group: r.counter("group")?,
            seq: Seq(r.counter("seq")?),
            time_ns: r.u64()?,
            point: r.counter("point")?,
            label: text_of(r.bytes(POINT_LABEL_BYTES)?),
        })
    }
}

/// How far the journal and the backing have come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Counts updates; of two valid copies the larger is the newer.
    pub update: u64,
    /// Whose backing it is.
    pub backing_id: [u8; 16],
    /// Whose log the sequence numbers are of.
    pub cache_id: [u8; 16],
    /// The run that wrote this.
    pub generation: u64,
    /// With the groups in the ring applied, the backing is consistent (P4).
    pub consistent: bool,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Size of the ring, a multiple of 4096.
    pub ring_bytes: u64,
    /// Position of the first group that may not have been applied. Positions count bytes since the journal was made, and
    /// are found in the ring modulo its size.
    pub tail: u64,
    /// Position behind the last committed group.
    pub head: u64,
    /// Moment of the last group that was left behind: each of its blocks is in place, or in a group of the ring.
    pub applied: Moment,
    /// What it is as of with them.
    pub committed: Moment,
    /// Position behind the group that is prepared and not committed; that of `head` if there is none.
    pub prepared: u64,
    /// What it knows of a consistency group.
    pub common: Common,
}

impl Head {
    /// A journal without groups.
    pub fn new(backing_id: [u8; 16], cache_id: [u8; 16], volume_bytes: u64, ring_bytes: u64) -> Self {
        Self {
            update: 0,
            backing_id,
            cache_id,
            generation: 0,
            consistent: false,
            volume_bytes,
            ring_bytes,
            tail: 0,
            head: 0,
            applied: Moment::default(),
            committed: Moment::default(),
            prepared: 0,
            common: Common::default(),
        }
    }

    /// The head with which run `generation` begins, once what was `found` has been replayed: as it was if it is of the
    /// backing's latest run; else nothing is known of the backing.
    pub fn for_run(found: Option<&Self>, identities: &Identities, generation: u64, ring_bytes: u64) -> Self {
        let superblock = &identities.superblock;
        let new =
            Self::new(superblock.backing_id, superblock.layout.cache_id, superblock.volume_bytes, ring_bytes);
        let Some(found) = found else { return Self { update: 1, generation, ..new } };
        let update = found.update + 1;
        let ours = identities.label.as_ref().is_some_and(|label| found.is_of(label));
        let same = (found.volume_bytes, found.ring_bytes) == (new.volume_bytes, new.ring_bytes);
        match ours && same {
            true => Self {
                update,
                generation,
                tail: found.head,
                applied: found.committed.clone(),
                ..found.clone()
            },
            false => Self { update, generation, ..new },
        }
    }

    /// Byte offset of the copy that an update with this counter goes to.
    pub const fn copy_offset(update: u64) -> u64 {
        (update % 2) * JOURNAL_HEAD_BYTES
    }

    /// Byte offset in the journal of a position in its ring.
    pub const fn offset_of(&self, position: u64) -> u64 {
        JOURNAL_RING_OFFSET + position % self.ring_bytes
    }

    /// Bytes from `position` to the end of the ring, where it begins anew.
    pub const fn run_of(&self, position: u64) -> u64 {
        self.ring_bytes - position % self.ring_bytes
    }

    /// Whether this journal is that of the backing's latest run, by the backing's label: it tells the backing's state then,
    /// and its groups are to be applied. Otherwise the backing has gone on without it.
    pub fn is_of(&self, label: &Label) -> bool {
        label.state == LabelState::Paired
            && label.journal_run > 0
            && self.generation >= label.journal_run
            && (self.backing_id, self.cache_id) == (label.backing_id, label.cache_id)
    }

    /// What it says must be true of the volume whose label this is, and of a journal with room for a ring of so many bytes.
    ///
    /// # Errors
    /// [`FormatError::Field`] that names what cannot be: its groups are not to be applied.
    pub fn hold_against(&self, label: &Label, room_bytes: u64) -> Result<(), FormatError> {
        if self.volume_bytes != label.volume_bytes {
            return Err(FormatError::Field("volume_bytes"));
        }
        if self.ring_bytes > room_bytes {
            return Err(FormatError::Field("ring_bytes"));
        }
        Ok(())
    }

    /// The bytes of one copy.
    pub fn encode(&self) -> Buf {
        let mut out = [0; JOURNAL_HEAD_BYTES as usize];
        let mut w = Writer::new(&mut out);
        w.bytes(HEAD_MAGIC);
        let knows = self.common != Common::default();
        w.u32(if knows { JOURNAL_VERSION_COMMON } else { JOURNAL_VERSION });
        w.skip(4);
        w.u64(self.update);
        w.bytes(&self.backing_id);
        w.bytes(&self.cache_id);
        w.u64(self.generation);
        w.u32(u32::from(self.consistent));
        w.u32(0);
        w.u64(self.volume_bytes);
        w.u64(self.ring_bytes);
        w.u64(self.tail);
        w.u64(self.head);
        self.applied.write(&mut w);
        self.committed.write(&mut w);
        if knows {
            w.u64(self.prepared);
            w.u64(self.common.decided);
            w.u64(self.common.prepared);
            w.bytes(&self.common.set);
            w.u32(self.common.member);
            w.u32(0);
            w.bytes(&text_field::<COMMON_NAMES_BYTES>(&self.common.names));
        }
        seal(&mut out);
        Buf::copy_of(&out)
    }

    /// Reads one copy.
    ///
    /// # Errors
    /// [`FormatError`] if it is none, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..JOURNAL_HEAD_BYTES as usize).ok_or(FormatError::Truncated)?;
        let (version, mut r) = opened(bytes, bytes, HEAD_MAGIC, JOURNAL_VERSION_COMMON)?;
        let update = r.counter("update")?;
        let (backing_id, cache_id) = (r.array()?, r.array()?);
        let generation = r.counter("generation")?;
        let consistent = r.u32()? & 1 != 0;
        r.u32()?;
        let volume_bytes = r.volume_bytes()?;
        let ring_bytes = r.counter("ring_bytes")?;
        let (tail, head) = (r.counter("tail")?, r.counter("head")?);
        let whole = |v: u64| v.is_multiple_of(BLOCK_BYTES);
        if ring_bytes == 0 || !whole(ring_bytes) {
            return Err(FormatError::Field("ring_bytes"));
        }
        if !whole(tail) || !whole(head) || tail > head || head - tail > ring_bytes {
            return Err(FormatError::Field("tail or head"));
        }
        let (applied, committed) = (Moment::read(&mut r)?, Moment::read(&mut r)?);
        if applied.group > committed.group || applied.seq > committed.seq {
            return Err(FormatError::Field("applied"));
        }
        let (mut prepared, mut common) = (head, Common::default());
        if version == JOURNAL_VERSION_COMMON {
            prepared = r.counter("prepared")?;
            common = Common {
                decided: r.counter("common_decided")?,
                prepared: r.counter("common_prepared")?,
                set: r.array()?,
                member: r.u32()?,
                names: String::new(),
            };
            r.u32()?;
            common.names = text_of(r.bytes(COMMON_NAMES_BYTES)?);
        }
        let one = whole(prepared) && prepared >= head && prepared - tail <= ring_bytes;
        if !one || (prepared > head) != (common.prepared > 0) {
            return Err(FormatError::Field("prepared"));
        }
        Ok(Self {
            update,
            backing_id,
            cache_id,
            generation,
            consistent,
            volume_bytes,
            ring_bytes,
            tail,
            head,
            applied,
            committed,
            prepared,
            common,
        })
    }

    /// A group is prepared, and not committed.
    pub const fn has_prepared(&self) -> bool {
        self.common.prepared > 0
    }

    /// The group that is prepared will not be committed, or the backing has gone on without it.
    pub fn forget_prepared(&mut self) {
        (self.prepared, self.common.prepared) = (self.head, 0);
    }

    /// The newer copy of the two that a journal begins with.
    ///
    /// # Errors
    /// [`FormatError::Magic`] if there is no journal. A copy that is damaged is never passed over: what it says lies in one
    /// sector, which no crash tears, and the older one may speak of groups that the backing has left behind.
    pub fn newest(copies: &[u8]) -> Result<Self, FormatError> {
        let at = JOURNAL_HEAD_BYTES as usize;
        let (a, b) = copies.split_at_checked(at).ok_or(FormatError::Truncated)?;
        let blank = |copy: &[u8]| copy.get(..512).is_some_and(|sector| sector.iter().all(|byte| *byte == 0));
        match (Self::decode(a), Self::decode(b)) {
            (Ok(a), Ok(b)) => Ok(if b.update > a.update { b } else { a }),
            (Ok(one), Err(_)) if blank(b) => Ok(one),
            (Err(_), Ok(one)) if blank(a) => Ok(one),
            (Ok(_), Err(e)) | (Err(e), Ok(_)) => {
                Err(if e == FormatError::Magic { FormatError::Checksum } else { e })
            }
            (Err(FormatError::Magic), Err(e)) | (Err(e), Err(_)) => Err(e),
        }
    }
}

/// A block of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupEntry {
    /// Which block of the volume.
    pub block: BlockNo,
    /// The log record that it comes from.
    pub seq: Seq,
    /// [`crate::checksum::block_checksum`] of address, sequence number and data; 0 for zeroes.
    pub checksum: u32,
    /// It is zero, and has no data in the journal.
    pub zero: bool,
}

/// What a group begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// As in the head.
    pub cache_id: [u8; 16],
    /// The run that wrote it.
    pub generation: u64,
    /// Position of its first byte.
    pub position: u64,
    /// What the backing is as of with it.
    pub moment: Moment,
    /// Its blocks, in ascending order.
    pub entries: Vec<GroupEntry>,
}

impl Group {
    /// Bytes of a descriptor with so many entries, a multiple of 4096.
    pub const fn descriptor_bytes(entries: usize) -> u64 {
        ((GROUP_FIXED_BYTES + entries * GROUP_ENTRY_BYTES) as u64).next_multiple_of(BLOCK_BYTES)
    }

    /// Bytes of data behind the descriptor.
    pub fn data_bytes(&self) -> u64 {
        self.entries.iter().filter(|e| !e.zero).count() as u64 * BLOCK_BYTES
    }

    /// Bytes of the whole group.
    pub fn bytes(&self) -> u64 {
        Self::descriptor_bytes(self.entries.len()) + self.data_bytes()
    }

    /// The descriptor's bytes.
    pub fn encode(&self) -> Buf {
        let mut out = BufMut::zeroed(Self::descriptor_bytes(self.entries.len()) as usize);
        let mut w = Writer::new(&mut out);
        w.bytes(GROUP_MAGIC);
        w.u32(JOURNAL_VERSION);
        w.skip(4);
        w.bytes(&self.cache_id);
        w.u64(self.generation);
        w.u64(self.position);
        w.u64(self.bytes());
        w.u32(self.entries.len() as u32);
        w.u32(0);
        self.moment.write(&mut w);
        let mut w = Writer::new(&mut out[GROUP_FIXED_BYTES..]);
        for e in &self.entries {
            w.u64(e.block.0);
            w.u64(e.seq.0);
            w.u32(e.checksum);
            w.u32(u32::from(e.zero));
        }
        seal(&mut out);
        out.freeze()
    }

    /// Bytes of the descriptor whose first block this is, if it is one.
    ///
    /// # Errors
    /// [`FormatError`] if it is none.
    pub fn descriptor_bytes_of(first: &[u8]) -> Result<u64, FormatError> {
        let mut r = Reader::new(first);
        if r.bytes(8)? != GROUP_MAGIC {
            return Err(FormatError::Magic);
        }
        r.bytes(8 + 16 + 3 * 8)?;
        match r.u32()? as usize {
            n if n <= GROUP_ENTRIES_MAX => Ok(Self::descriptor_bytes(n)),
            _ => Err(FormatError::Field("entries")),
        }
    }

    /// Reads a descriptor.
    ///
    /// # Errors
    /// [`FormatError`] if it is none, damaged, or of an unknown version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let len = Self::descriptor_bytes_of(bytes)? as usize;
        let bytes = bytes.get(..len).ok_or(FormatError::Truncated)?;
        let (_, mut r) = opened(bytes, bytes, GROUP_MAGIC, JOURNAL_VERSION)?;
        let cache_id = r.array()?;
        let generation = r.counter("generation")?;
        let position = r.counter("position")?;
        let said = r.u64()?;
        let count = r.u32()? as usize;
        r.u32()?;
        let moment = Moment::read(&mut r)?;
        let mut r = Reader::new(&bytes[GROUP_FIXED_BYTES..]);
        let mut entries: Vec<GroupEntry> = Vec::with_capacity(count);
        for _ in 0..count {
            let (block, seq) = (BlockNo(r.u64()?), Seq(r.counter("seq")?));
            let (checksum, kind) = (r.u32()?, r.u32()?);
            if kind > 1 || entries.last().is_some_and(|last| last.block >= block) {
                return Err(FormatError::Field("entry"));
            }
            entries.push(GroupEntry { block, seq, checksum, zero: kind == 1 });
        }
        let group = Self { cache_id, generation, position, moment, entries };
        if group.bytes() != said {
            return Err(FormatError::Field("bytes"));
        }
        Ok(group)
    }
}

/// Checks magic, checksum and version, which is at most `newest`; what follows them is left to be read.
fn opened<'a>(
    bytes: &'a [u8],
    covered: &[u8],
    magic: &[u8; 8],
    newest: u32,
) -> Result<(u32, Reader<'a>), FormatError> {
    let mut r = Reader::new(bytes);
    if r.bytes(8)? != magic {
        return Err(FormatError::Magic);
    }
    let version = r.u32()?;
    if r.u32()? != crc_with_hole(covered, CRC_AT) {
        return Err(FormatError::Checksum);
    }
    if !(JOURNAL_VERSION..=newest).contains(&version) {
        return Err(FormatError::Version(version));
    }
    Ok((version, r))
}

fn seal(out: &mut [u8]) {
    let crc = crc_with_hole(out, CRC_AT);
    out[CRC_AT..CRC_AT + 4].copy_from_slice(&crc.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::label::tests::sample as label;
    use crate::superblock::tests::sample as superblock;

    const RING_BYTES: u64 = 1 << 20;

    fn identities() -> Identities {
        Identities { superblock: superblock(), label: Some(label()) }
    }

    fn moment(group: u64) -> Moment {
        Moment { group, seq: Seq(10 * group), ..Moment::default() }
    }

    fn found() -> Head {
        Head {
            update: 41,
            generation: 4,
            consistent: true,
            tail: 4096,
            head: 12_288,
            applied: moment(6),
            committed: moment(7),
            prepared: 12_288,
            ..Head::new(label().backing_id, label().cache_id, 1 << 30, RING_BYTES)
        }
    }

    /// What one head says of the one before must not be older: both copies are believed by their `update` alone.
    #[test]
    fn a_run_goes_on_from_the_latest_head_and_knows_nothing_from_another() {
        let next =
            |found: Option<&Head>, identities: &Identities| Head::for_run(found, identities, 5, RING_BYTES);
        let blank =
            Head { generation: 5, ..Head::new(label().backing_id, label().cache_id, 1 << 30, RING_BYTES) };
        assert_eq!(next(None, &identities()), Head { update: 1, ..blank.clone() });
        let gone_on = Head { update: 42, generation: 5, tail: 12_288, applied: moment(7), ..found() };
        assert_eq!(next(Some(&found()), &identities()), gone_on);
        let anew = Head { update: 42, ..blank };
        for other in [
            Head { volume_bytes: 1 << 29, ..found() },
            Head { ring_bytes: RING_BYTES / 2, ..found() },
            Head { generation: 3, ..found() },
            Head { cache_id: [1; 16], ..found() },
        ] {
            assert_eq!(next(Some(&other), &identities()), anew, "{other:?}");
        }
        assert_eq!(next(Some(&found()), &Identities { label: None, ..identities() }), anew);
    }

    #[test]
    fn a_journal_is_that_of_the_backings_latest_run_or_of_none() {
        assert!(found().is_of(&label()) && Head { generation: 5, ..found() }.is_of(&label()));
        for head in [
            Head { generation: 3, ..found() },
            Head { backing_id: [1; 16], ..found() },
            Head { cache_id: [1; 16], ..found() },
        ] {
            assert!(!head.is_of(&label()), "{head:?}");
        }
        for state in [LabelState::Released, LabelState::Retired] {
            assert!(!found().is_of(&Label { state, ..label() }), "{state:?}");
        }
        assert!(!found().is_of(&Label { journal_run: 0, ..label() }), "it ran without a journal");
    }

    #[test]
    fn the_ring_begins_anew_behind_its_end() {
        let head = found();
        assert_eq!([0, 1, 2].map(Head::copy_offset), [0, JOURNAL_HEAD_BYTES, 0]);
        for (position, offset, run) in [
            (0, 0, RING_BYTES),
            (4096, 4096, RING_BYTES - 4096),
            (RING_BYTES, 0, RING_BYTES),
            (3 * RING_BYTES - 512, RING_BYTES - 512, 512),
        ] {
            assert_eq!(
                (head.offset_of(position), head.run_of(position)),
                (JOURNAL_RING_OFFSET + offset, run)
            );
        }
    }

    fn group(entries: Vec<GroupEntry>) -> Group {
        Group { cache_id: [0xC1; 16], generation: 4, position: 8192, moment: moment(7), entries }
    }

    fn entry(block: u64, zero: bool) -> GroupEntry {
        GroupEntry { block: BlockNo(block), seq: Seq(70), checksum: if zero { 0 } else { 0x1234_5678 }, zero }
    }

    #[test]
    fn a_group_has_its_data_behind_its_descriptor() {
        let group = group(vec![entry(3, false), entry(4, true), entry(9, false)]);
        assert_eq!(Group::descriptor_bytes(3), 4096);
        assert_eq!(group.bytes(), 3 * 4096, "zeroes have no data");
        let bytes = group.encode();
        assert_eq!(Group::decode(&bytes), Ok(group));
        assert_eq!(Group::decode(&bytes[..4095]), Err(FormatError::Truncated));
    }

    #[test]
    fn the_entries_of_a_group_ascend() {
        for wrong in [vec![entry(4, false), entry(3, false)], vec![entry(4, false), entry(4, true)]] {
            assert_eq!(Group::decode(&group(wrong).encode()), Err(FormatError::Field("entry")));
        }
    }

    #[test]
    fn what_is_prepared_is_known_until_it_is_forgotten() {
        let mut head = found();
        assert!(!head.has_prepared());
        (head.prepared, head.common.prepared) = (16_384, 3);
        assert!(head.has_prepared());
        head.forget_prepared();
        assert_eq!(head, found());
    }
}
