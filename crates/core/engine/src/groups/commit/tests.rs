//! Against plain bytes: what is moved is what the group wrote, in few pieces.

use forebay_block::{BlockNo, Buf, Seq};
use forebay_format::journal::Moment;
use proptest::prelude::*;

use super::*;
use crate::groups::ring::stretches;
use crate::groups::tests::head;

const RING_BLOCKS: u64 = 23;
const BLOCKS: u64 = 12;
/// The last block is not a whole one.
const VOLUME_BYTES: u64 = BLOCKS * BLOCK_BYTES - 1024;

fn data(block: u64) -> Buf {
    Buf::copy_of(&[block as u8 + 1; BLOCK_BYTES as usize])
}

proptest! {
    #[test]
    fn a_group_comes_to_its_place_wherever_it_lies_in_the_ring(
        blocks in proptest::collection::btree_map(0..BLOCKS, any::<bool>(), 0..BLOCKS as usize),
        position in 0..3 * RING_BLOCKS,
    ) {
        let before = head(RING_BLOCKS);
        let position = position * BLOCK_BYTES;
        let entry = |(block, zero): (&u64, &bool)| {
            GroupEntry { block: BlockNo(*block), seq: Seq(1), checksum: 0, zero: *zero }
        };
        let entries: Vec<_> = blocks.iter().map(entry).collect();
        let (cache_id, generation, moment) = ([0; 16], 1, Moment::default());
        let group = Descriptor { cache_id, generation, position, moment, entries };

        let mut journal = vec![0xFF; (before.offset_of(0) + before.ring_bytes) as usize];
        let mut bufs = vec![Buf::zeroed(Descriptor::descriptor_bytes(group.entries.len()) as usize)];
        bufs.extend(blocks.iter().filter(|(_, zero)| !**zero).map(|(block, _)| data(*block)));
        for (offset, bufs) in stretches(&before, position, bufs) {
            let mut at = offset as usize;
            for buf in bufs {
                journal[at..at + buf.len()].copy_from_slice(&buf);
                at += buf.len();
            }
        }
        let mut image = vec![0xEE; VOLUME_BYTES as usize];
        let write = DeviceOp::Write { offset: 4096, bufs: vec![Buf::copy_of(&[7; 512])], durable: true };
        let DeviceOp::Commit(commit) = commit(write, &group, &before, VOLUME_BYTES) else { panic!("a commit") };
        prop_assert_eq!((commit.head_offset, &commit.head[..]), (4096, &[7; 512][..]));
        for Move { from, to, len } in &commit.moves {
            let (from, to, len) = (*from as usize, *to as usize, *len as usize);
            image[to..to + len].copy_from_slice(&journal[from..from + len]);
        }
        for (offset, len) in &commit.zeroes {
            image[*offset as usize..(offset + len) as usize].fill(0);
        }
        for block in 0..BLOCKS {
            let held = match blocks.get(&block) {
                None => 0xEE,
                Some(true) => 0,
                Some(false) => block as u8 + 1,
            };
            let end = ((block + 1) * BLOCK_BYTES).min(VOLUME_BYTES);
            prop_assert!(image[(block * BLOCK_BYTES) as usize..end as usize].iter().all(|b| *b == held));
        }

        // Neighbours go together, but for where the ring begins anew.
        let runs = |zero: bool| {
            let of: Vec<u64> = blocks.iter().filter(|(_, z)| **z == zero).map(|(block, _)| *block).collect();
            of.chunk_by(|a, b| a + 1 == *b).count()
        };
        prop_assert_eq!(commit.zeroes.len(), runs(true));
        prop_assert!(commit.moves.len() <= runs(false) + 1);
        let held: u64 = places(&group.entries).iter().map(|range| range.count).sum();
        prop_assert_eq!(held as usize, blocks.len());
    }
}
