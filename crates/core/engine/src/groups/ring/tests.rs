//! Against a medium of plain bytes, and a plain list of groups.

use proptest::prelude::*;

use super::*;
use crate::groups::tests::head;

const RING_BLOCKS: u64 = 11;
const BLOCKS: u64 = 6;

/// The data of a version: every byte tells which.
fn data(block: u64, seq: u64) -> Buf {
    Buf::copy_of(&[(block * 16 + seq % 16) as u8; BLOCK_BYTES as usize])
}

struct Plain {
    bytes: u64,
    upto: u64,
    entries: Vec<(u64, u64, bool)>,
}

proptest! {
    /// Groups come and go for many laps of the ring.
    #[test]
    fn behaves_like_a_list(
        ops in proptest::collection::vec((proptest::collection::btree_map(0..BLOCKS, any::<bool>(), 0..6), 0usize..3, any::<bool>()), 1..60),
    ) {
        let mut head = head(RING_BLOCKS);
        let begin = head.offset_of(0) as usize;
        let mut medium = vec![0u8; begin + head.ring_bytes as usize];
        let (mut ring, mut plain, mut seq) = (Ring::default(), VecDeque::<Plain>::new(), 0u64);
        for (blocks, leave, small) in ops {
            // One record a block; then the group.
            let entries: Vec<(u64, u64, bool)> = blocks.iter().map(|(block, zero)| { seq += 1; (*block, seq, *zero) }).collect();
            seq += u64::from(small);
            let written = entries.iter().filter(|(.., zero)| !zero).count() as u64;
            let bytes = BLOCK_BYTES * (1 + written);
            if bytes <= room(&head) {
                let mut bufs = vec![Buf::copy_of(&[0xFF; BLOCK_BYTES as usize])];
                bufs.extend(entries.iter().filter(|(.., zero)| !zero).map(|(block, seq, _)| data(*block, *seq)));
                let mut sum = 0;
                for (offset, bufs) in stretches(&head, head.head, bufs) {
                    let mut at = offset as usize;
                    for buf in bufs {
                        prop_assert!(at >= begin && at + buf.len() <= medium.len(), "beyond the ring");
                        medium[at..at + buf.len()].copy_from_slice(&buf);
                        at += buf.len();
                    }
                    sum += at as u64 - offset;
                }
                prop_assert_eq!(sum, bytes);
                let (position, end) = (head.head, head.head + bytes);
                head.head = end;
                let as_entry = |(block, seq, zero): &(u64, u64, bool)| GroupEntry { block: BlockNo(*block), seq: Seq(*seq), checksum: 0, zero: *zero };
                let moment = Moment { seq: Seq(seq), point: seq, ..Moment::default() };
                ring.push(InRing { position, end, moment, entries: Arc::new(entries.iter().map(as_entry).collect()) });
                plain.push_back(Plain { bytes, upto: seq, entries });
            }
            for gone in plain.drain(..leave.min(plain.len())) {
                head.tail += gone.bytes;
            }
            ring.leave_behind(head.tail);

            prop_assert_eq!((ring.len(), ring.is_empty()), (plain.len(), plain.is_empty()));
            prop_assert_eq!(room(&head), head.ring_bytes - plain.iter().map(|g| g.bytes).sum::<u64>());
            prop_assert_eq!(ring.newest().map(|g| g.moment.seq.0), plain.back().map(|g| g.upto));
            for upto in [0, seq.saturating_sub(4), seq] {
                let applied = plain.iter().take_while(|g| g.upto <= upto).last();
                prop_assert_eq!(ring.applied(Seq(upto)).map(|g| g.moment.seq.0), applied.map(|g| g.upto));
            }
            let all = || plain.iter().flat_map(|g| g.entries.iter().copied());
            for block in 0..BLOCKS {
                prop_assert_eq!(ring.holds(BlockRange::new(BlockNo(block), 1)), all().any(|(b, ..)| b == block));
                for s in seq.saturating_sub(20)..=seq {
                    prop_assert_eq!(ring.has_newer(BlockNo(block), Seq(s)), all().any(|(b, of, _)| b == block && of > s));
                    let copy = ring.copy(BlockNo(block), Seq(s)).map(|position| head.offset_of(position) as usize);
                    prop_assert_eq!(copy.is_some(), all().any(|e| e == (block, s, false)), "block {} of record {}", block, s);
                    if let Some(at) = copy {
                        prop_assert_eq!(&medium[at..at + BLOCK_BYTES as usize], &data(block, s)[..]);
                    }
                }
            }
        }
        ring.forget_points();
        prop_assert!(ring.groups.iter().all(|group| group.moment.point == 0));
    }
}
