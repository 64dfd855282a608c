use forebay_block::Seq;
use proptest::prelude::*;

use super::*;
use crate::journal::{GROUP_ENTRIES_MAX, JOURNAL_RING_OFFSET};

const BLOCKS: u64 = 12;

fn blank() -> Head {
    Head { update: 5, ..Head::new([1; 16], [2; 16], 1 << 20, 1 << 16) }
}

#[test]
fn zeroes_are_joined_only_where_they_touch() {
    let mut replay = Replay::new(blank());
    [3, 4, 9].into_iter().for_each(|block| replay.zero(BlockNo(block)));
    let ranges = replay.writes.iter().filter_map(|write| match write {
        DeviceOp::Zero { offset, len, .. } => Some((*offset, *len)),
        _ => None,
    });
    assert_eq!(ranges.collect::<Vec<_>>(), [(3 * 4096, 2 * 4096), (9 * 4096, 4096)]);
    assert_eq!(replay.applied, 3);
}

#[test]
fn what_changes_the_head_makes_a_newer_one_and_nothing_else_does() {
    let common = Common { prepared: 3, ..Common::default() };
    let forgotten = Replay::deciding(Head { prepared: 8192, common, ..blank() }, Prepared::Dropped);
    assert_eq!((forgotten.head, forgotten.phase), (Head { update: 6, ..blank() }, Phase::Head));
    let settled = Replay::deciding(blank(), Prepared::Dropped);
    assert_eq!((settled.head, settled.phase), (blank(), Phase::End));
    let mut applied = Replay::new(Head { head: 4096, ..blank() });
    applied.phase = Phase::Flush;
    applied.done(None).unwrap();
    assert_eq!((applied.head.update, applied.head.tail, applied.phase), (6, 4096, Phase::Head));
}

/// A journal and a volume in memory.
#[derive(Clone)]
struct Place {
    journal: Vec<u8>,
    volume: Vec<u8>,
}

impl Place {
    fn step(&mut self, step: Step) -> Option<Option<Buf>> {
        let (op, bytes) = match step {
            Step::End => return None,
            Step::Journal(op) => (op, &mut self.journal),
            Step::Backing(op) => (op, &mut self.volume),
        };
        Some(match op {
            DeviceOp::Read { offset, len } => Some(Buf::copy_of(&bytes[offset as usize..][..len])),
            DeviceOp::Write { offset, bufs, .. } => {
                let mut at = offset as usize;
                for buf in bufs {
                    bytes[at..at + buf.len()].copy_from_slice(&buf);
                    at += buf.len();
                }
                None
            }
            DeviceOp::Zero { offset, len, .. } => {
                bytes[offset as usize..][..len as usize].fill(0);
                None
            }
            DeviceOp::Flush | DeviceOp::Commit(_) => None,
        })
    }

    /// Replays until the end or for so many steps.
    fn replay(&mut self, steps: usize) -> Result<u64, DamagedGroup> {
        let mut replay = Replay::new(Head::newest(&self.journal[..JOURNAL_RING_OFFSET as usize]).unwrap());
        for _ in 0..steps {
            let Some(read) = self.step(replay.step()) else { break };
            replay.done(read.as_ref())?;
        }
        Ok(replay.blocks_applied())
    }
}

/// A journal with these groups, each of blocks with a fill byte (0: zeroes), from `tail` on; and the volume as it must be.
fn world(groups: &[Vec<(u64, u8)>], tail: u64, ring_blocks: u64, odd: u64) -> (Place, Vec<u8>) {
    let volume_bytes = BLOCKS * BLOCK_BYTES - odd;
    let mut head = Head::new([1; 16], [2; 16], volume_bytes, ring_blocks * BLOCK_BYTES);
    (head.generation, head.update, head.consistent) = (3, 4, true);
    (head.tail, head.head) = (tail * BLOCK_BYTES, tail * BLOCK_BYTES);
    let volume = vec![0xEE; volume_bytes as usize];
    let mut place = Place { journal: vec![0; (JOURNAL_RING_OFFSET + head.ring_bytes) as usize], volume };
    let mut expected = place.volume.clone();
    for (n, blocks) in (1..).zip(groups) {
        let blocks: std::collections::BTreeMap<u64, u8> = blocks.iter().copied().collect();
        let seq = Seq(n);
        let data = |fill: u8| vec![fill; BLOCK_BYTES as usize];
        let entry = |(block, fill): (&u64, &u8)| GroupEntry {
            block: BlockNo(*block),
            seq,
            checksum: if *fill == 0 { 0 } else { block_checksum(BlockNo(*block), seq, &data(*fill)) },
            zero: *fill == 0,
        };
        let group = Group {
            cache_id: [2; 16],
            generation: 3,
            position: head.head,
            moment: Moment { group: n, seq, ..Moment::default() },
            entries: blocks.iter().map(entry).collect(),
        };
        let mut bytes = group.encode().to_vec();
        for (block, fill) in &blocks {
            if *fill > 0 {
                bytes.extend(data(*fill));
            }
            let at = (*block * BLOCK_BYTES) as usize;
            let end = (at + BLOCK_BYTES as usize).min(expected.len());
            expected[at..end].fill(*fill);
        }
        for chunk in bytes.chunks(BLOCK_BYTES as usize) {
            let at = head.offset_of(head.head) as usize;
            place.journal[at..at + chunk.len()].copy_from_slice(chunk);
            head.head += BLOCK_BYTES;
        }
        head.committed = group.moment;
    }
    head.prepared = head.head;
    place.journal[..BLOCK_BYTES as usize].copy_from_slice(&head.encode());
    (place, expected)
}

fn groups() -> impl Strategy<Value = Vec<Vec<(u64, u8)>>> {
    let block = (0..BLOCKS, any::<u8>());
    proptest::collection::vec(proptest::collection::vec(block, 1..6), 1..5)
}

proptest! {
    /// Wherever the groups lie in the ring, and whenever a crash cuts a replay short, the next one ends with everything.
    #[test]
    fn groups_are_applied_in_their_order(
        groups in groups(), tail in 0u64..70, odd in prop::sample::select(vec![0u64, 512, 3584]), crash in 0usize..40
    ) {
        let (mut place, expected) = world(&groups, tail, 31, odd);
        place.replay(crash).unwrap();
        place.replay(usize::MAX).unwrap();
        prop_assert_eq!(&place.volume, &expected);
        let head = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        prop_assert_eq!((head.tail, head.applied), (head.head, head.committed));
        prop_assert_eq!(place.replay(usize::MAX).unwrap(), 0, "nothing is left to be done");
    }

    /// A flipped bit in any group is found before anything is changed.
    #[test]
    fn damage_changes_nothing(groups in groups(), tail in 0u64..70, at in any::<prop::sample::Index>()) {
        let (mut place, _) = world(&groups, tail, 31, 0);
        let head = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        let position = head.tail + at.index((head.head - head.tail) as usize) as u64;
        place.journal[head.offset_of(position) as usize] ^= 0x10;
        let before = place.volume.clone();
        prop_assert!(place.replay(usize::MAX).is_err());
        prop_assert_eq!(place.volume, before);
    }
}

/// A group that is whole and says what cannot be changes nothing.
#[test]
fn nonsense_with_right_checksums_changes_nothing() {
    type Forge = fn(&mut Group);
    let forgeries: [(&str, Forge); 8] = [
        ("another cache's", |g| g.cache_id = [9; 16]),
        ("of a later run", |g| g.generation = 4),
        ("of another place", |g| g.position += BLOCK_BYTES),
        ("behind the volume's end", |g| g.entries[0].block = BlockNo(BLOCKS)),
        ("of a later record", |g| g.entries[0].seq = Seq(g.moment.seq.0 + 1)),
        ("of no number", |g| g.moment.group = 0),
        ("as the one before", |g| g.moment.group = 1),
        ("longer than what is committed", |g| {
            g.entries = vec![GroupEntry { zero: false, ..g.entries[0] }; 1];
            g.entries.push(GroupEntry { block: BlockNo(g.entries[0].block.0 + 1), ..g.entries[0] });
        }),
    ];
    let (whole, expected) = world(&[vec![(1, 1)], vec![(2, 2)]], 29, 31, 0);
    whole.clone().replay(usize::MAX).unwrap();
    assert_ne!(whole.volume, expected);
    let head = Head::newest(&whole.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
    for (name, forge) in forgeries {
        let mut place = whole.clone();
        let at = head.offset_of(head.tail + 2 * BLOCK_BYTES) as usize;
        let mut group = Group::decode(&place.journal[at..][..BLOCK_BYTES as usize]).unwrap();
        forge(&mut group);
        let forged = group.encode();
        place.journal[at..at + forged.len()].copy_from_slice(&forged);
        assert!(place.replay(usize::MAX).is_err(), "{name}");
        assert!(place.volume == whole.volume, "{name}");
    }
}

/// Whenever it goes bad, it is told which group it is, and whether anything was applied.
#[test]
fn a_group_that_goes_bad_after_its_check_is_named() {
    let (whole, _) = world(&[vec![(1, 1)], vec![(2, 2)], vec![(3, 3)]], 29, 31, 0);
    let head = Head::newest(&whole.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for (steps, block) in (0..20).flat_map(|steps| [(steps, 2), (steps, 3)]) {
        let (mut place, mut replay) = (whole.clone(), Replay::new(head.clone()));
        let mut done = 0;
        let error = loop {
            if done == steps {
                place.journal[head.offset_of(head.tail + block * BLOCK_BYTES) as usize] ^= 0x10;
            }
            done += 1;
            let Some(read) = place.step(replay.step()) else { break None };
            if let Err(error) = replay.done(read.as_ref()) {
                break Some(error);
            }
        };
        if let Some(error) = error {
            assert_eq!(error.group, 2, "{error}");
            assert!(error.applying || place.volume == whole.volume, "{error}");
            seen.insert((block, error.applying));
        }
    }
    assert_eq!(seen.len(), 4, "descriptor and data, before and after: {seen:?}");
}

/// Whatever is to become of a prepared group, at whichever step a crash cuts it short.
#[test]
fn a_prepared_group_is_applied_only_if_all_have_it() {
    let groups = [vec![(1, 1), (2, 2)], vec![(2, 7), (3, 0)]];
    let (committed, before) = world(&groups[..1], 29, 31, 0);
    let (whole, after) = world(&groups, 29, 31, 0);
    let mut place = Place { volume: committed.volume.clone(), ..whole.clone() };
    let mut head = Head::newest(&committed.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
    head.prepared = Head::newest(&whole.journal[..JOURNAL_RING_OFFSET as usize]).unwrap().head;
    head.common = crate::shared_point::Common {
        decided: 4,
        prepared: 5,
        names: "shop data log".to_owned(),
        ..Default::default()
    };
    place.journal[..BLOCK_BYTES as usize].copy_from_slice(&head.encode());
    let rows =
        [(Prepared::Applied, &after, 5), (Prepared::Dropped, &before, 4), (Prepared::Alone, &before, 0)];
    for ((what, volume, decided), crash) in rows.into_iter().flat_map(|row| (0..14).map(move |n| (row, n))) {
        let mut place = place.clone();
        for steps in [crash, usize::MAX] {
            let found = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
            let mut replay = Replay::deciding(found, what);
            for _ in 0..steps {
                let Some(read) = place.step(replay.step()) else { break };
                replay.done(read.as_ref()).unwrap();
            }
        }
        let end = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        assert_eq!(&place.volume, volume, "{what:?} {crash}");
        let group = if what == Prepared::Applied { 2 } else { 1 };
        assert_eq!((end.tail, end.prepared, end.committed.group), (end.head, end.head, group));
        assert_eq!((end.common.decided, end.common.prepared), (decided, 0));
    }
    // Whoever knows nothing of the others leaves it alone.
    place.replay(usize::MAX).unwrap();
    let head = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
    assert!(place.volume == before && head.has_prepared());
    let mut replay = Replay::of_prepared(&head);
    while let Some(read) = place.step(replay.step()) {
        replay.done(read.as_ref()).unwrap();
    }
    let group = replay.checked().unwrap();
    assert_eq!((group.moment.group, group.entries.len()), (2, 2));
}

#[test]
fn a_descriptor_may_be_longer_than_a_block() {
    let many: Vec<(u64, u8)> = (0..BLOCKS).map(|b| (b, 0)).collect();
    let (mut place, expected) = world(&[many], 3, 31, 512);
    assert_eq!(place.replay(usize::MAX), Ok(BLOCKS));
    assert_eq!(place.volume, expected);
    let entries: Vec<GroupEntry> =
        (0..400).map(|b| GroupEntry { block: BlockNo(b), seq: Seq(1), checksum: 0, zero: true }).collect();
    let group = Group { cache_id: [2; 16], generation: 3, position: 0, moment: Moment::default(), entries };
    let bytes = group.encode();
    assert_eq!(bytes.len() as u64, Group::descriptor_bytes_of(&bytes[..4096]).unwrap());
    assert_eq!(Group::decode(&bytes), Ok(group));
}

/// A descriptor that claims to be longer than the journal is damaged, whoever looks at it.
#[test]
fn a_descriptor_does_not_reach_beyond_the_head() {
    for tail in [0, 29] {
        let (mut place, _) = world(&[vec![(1, 1)], vec![(2, 2)]], tail, 31, 0);
        let head = Head::newest(&place.journal[..JOURNAL_RING_OFFSET as usize]).unwrap();
        let last = head.head - 2 * BLOCK_BYTES;
        let begins = head.offset_of(last);
        let entries = begins as usize + 56;
        assert_eq!(place.journal[entries..][..4], 1u32.to_le_bytes());
        let committed = Moment { group: 1, ..head.committed.clone() };
        let common = Common { decided: 1, prepared: 2, ..Common::default() };
        let prepared = Head { head: last, prepared: head.head, committed, common, ..head.clone() };
        for more in [170, 512, 4096, GROUP_ENTRIES_MAX as u32] {
            place.journal[entries..][..4].copy_from_slice(&more.to_le_bytes());
            for mut replay in [
                Replay::new(head.clone()),
                Replay::check_only(head.clone()),
                Replay::of_prepared(&prepared),
                Replay::deciding(prepared.clone(), Prepared::Applied),
            ] {
                let mut place = place.clone();
                let before = place.clone();
                let damage = loop {
                    let read = place.step(replay.step()).expect("not the end");
                    if let Err(damage) = replay.done(read.as_ref()) {
                        break damage;
                    }
                };
                assert_eq!((damage.group, damage.offset), (2, begins), "{damage:?}");
                assert!(place.journal == before.journal && place.volume == before.volume);
            }
        }
    }
}

#[test]
fn a_damaged_head_is_not_passed_over() {
    let (place, _) = world(&[vec![(1, 1)]], 0, 31, 0);
    let mut copies = place.journal[..JOURNAL_RING_OFFSET as usize].to_vec();
    let mut newer = Head::newest(&copies).unwrap();
    newer.update += 1;
    copies[BLOCK_BYTES as usize..].copy_from_slice(&newer.encode());
    assert_eq!(Head::newest(&copies), Ok(newer));
    for at in [BLOCK_BYTES as usize, BLOCK_BYTES as usize + 300, 3000] {
        let mut bad = copies.clone();
        bad[at] ^= 1;
        assert!(Head::newest(&bad).is_err(), "flip at {at}");
    }
    assert_eq!(Head::newest(&[0; JOURNAL_RING_OFFSET as usize]), Err(crate::FormatError::Magic));
}
