//! What the cache keeps: hits and misses of working sets, and how many groups it takes to bring data to the backing.

use forebay_block::Op;
use forebay_engine::Command;
use forebay_policy::{Durability, Settings, WritePolicy};

use crate::world::{World, settings};

/// Blocks that a segment of the world's log takes at least, one write each.
const SEGMENT_BLOCKS: u64 = 25;

fn write(w: &mut World, block: u64) {
    let id = w.write_as(block * 4096, 4096, false);
    w.run_until_answered(id).unwrap();
}

/// Reads the blocks one by one: how many came from the cache, and how many from the backing.
fn read(w: &mut World, blocks: impl IntoIterator<Item = u64>) -> (u64, u64) {
    let before = w.status();
    for block in blocks {
        let id = w.submit(Op::Read { offset: block * 4096, len: 4096 });
        w.run_until_answered(id).unwrap();
    }
    let after = w.status();
    let blocks = |after: u64, before: u64| (after - before) / 4096;
    (
        blocks(after.read_bytes_hit, before.read_bytes_hit),
        blocks(after.read_bytes_missed, before.read_bytes_missed),
    )
}

/// What has been destaged stays for reads, also over a clean stop, for there is room.
#[test]
fn a_working_set_that_fits_is_read_from_the_cache() {
    for write_policy in WritePolicy::ALL.iter().copied() {
        let mut w = World::new(2, Settings { write_policy, ..settings() }, 1024, 40);
        (0..300).for_each(|n| write(&mut w, n));
        w.command(Command::Destage).unwrap();
        assert_eq!(w.status().dirty_bytes, 0);
        assert_eq!(read(&mut w, 0..300), (300, 0), "{write_policy}");
        assert_eq!(w.status().cached_bytes, 300 * 4096, "{write_policy}");
        if write_policy != WritePolicy::Journaled {
            w.command(Command::Stop { destage: false }).unwrap();
            w.restart_unread(true);
            assert_eq!(read(&mut w, 0..300), (300, 0), "{write_policy}, after a stop");
        }
    }
}

/// Read misses cost no endurance: a block enters the cache when it is written.
#[test]
fn what_is_only_read_is_not_cached() {
    let mut w = World::new(2, settings(), 1024, 40);
    let written = w.status().bytes_to_cache;
    for _ in 0..2 {
        assert_eq!(read(&mut w, 0..100), (0, 100));
    }
    assert_eq!((w.status().bytes_to_cache, w.status().cached_bytes), (written, 0));
}

/// Blocks leave the cache in the order of the log, and only as many as room is wanted for.
#[test]
fn a_log_that_has_gone_round_is_full_of_what_was_written_last() {
    const SEGMENTS: u64 = 40;
    let mut w = World::new(2, settings(), 8192, SEGMENTS as u32);
    let written = 4 * SEGMENTS * SEGMENT_BLOCKS;
    for n in 0..written {
        write(&mut w, n);
        w.run(20);
    }
    w.command(Command::Destage).unwrap();
    w.run(1000);
    let young = (SEGMENTS - 10) * SEGMENT_BLOCKS;
    assert_eq!(read(&mut w, written - young..written), (young, 0));
    let old = written - (SEGMENTS + 5) * 32;
    assert_eq!(read(&mut w, 0..old), (0, old));
}

/// A hot set among blocks that are written once: what is read again and again is copied to the head when the log's hand comes to it, and
/// its neighbours go.
#[test]
fn what_is_read_again_stays_while_the_log_goes_round() {
    const SEGMENTS: u64 = 40;
    let mut w = World::new(2, settings(), 16384, SEGMENTS as u32);
    // Few enough for the share of one segment that is copied.
    let (hot, cold): (Vec<u64>, Vec<u64>) = (0..160).partition(|block| block % 32 == 0);
    (0..160).for_each(|block| write(&mut w, block));
    let (mut hits, mut misses) = (0, 0);
    for n in 0..3 * SEGMENTS {
        let first = 160 + n * SEGMENT_BLOCKS;
        (first..first + SEGMENT_BLOCKS).for_each(|block| write(&mut w, block));
        w.command(Command::Destage).unwrap();
        w.run(200);
        let (hit, missed) = read(&mut w, hot.iter().copied());
        (hits, misses) = (hits + hit, misses + missed);
    }
    println!("{hits} hits, {misses} misses");
    assert_eq!((hits, misses), (3 * SEGMENTS * hot.len() as u64, 0));
    assert_eq!(read(&mut w, cold.iter().copied()), (0, cold.len() as u64));
}

/// Bytes written to the cache for each block that the log has taken four times over.
fn written_by_block(read_again: bool) -> f64 {
    const SEGMENTS: u64 = 40;
    let mut w = World::new(2, settings(), 16384, SEGMENTS as u32);
    for n in 0..4 * SEGMENTS * SEGMENT_BLOCKS {
        write(&mut w, n);
        if read_again {
            read(&mut w, [n]);
        }
        w.run(20);
    }
    let status = w.status();
    status.bytes_to_cache as f64 / status.writes as f64
}

/// However much is read again: cleaning gains room, a quarter of a segment is copied and no more.
#[test]
fn copying_what_is_read_again_is_limited() {
    let (once, again) = (written_by_block(false), written_by_block(true));
    let copied = 1.0 - once / again;
    println!("{once:.0} and {again:.0} bytes for each block: {copied:.3} of them are copies");
    assert!((0.15..=0.26).contains(&copied), "{copied} of what is written are copies");
}

/// A failed flush may have cost the backing what was written past the log: no clean copy is believed after it, nor one that was on its
/// way to the head just then.
#[test]
fn nothing_clean_outlives_a_failed_flush_of_the_backing() {
    let settings =
        Settings { write_policy: WritePolicy::WriteThrough, durability: Durability::Flush, ..settings() };
    let mut w = World::new(2, settings, 16384, 16);
    let mut written = 0;
    // Nobody but cleaning reads the cache while a write is under way.
    while !w.is_reading_cache() {
        let id = w.write_as(written * 4096, 4096, false);
        while !w.is_answered(id) && !w.is_reading_cache() {
            w.run(1);
        }
        if w.is_answered(id) {
            read(&mut w, [written]);
            written += 1;
        }
    }
    assert!(w.status().cached_bytes > 100 * 4096, "copies are being made of a log that has gone round");
    (w.flushes_fail, w.errors_expected) = (true, true);
    let flush = w.submit(Op::Flush);
    while w.flushes_at_backing() == 0 {
        w.end_at_backing();
    }
    w.end_at_backing();
    assert!(w.is_reading_cache(), "what is being copied was not in time");
    w.run_until_answered(flush).unwrap_err();
    (w.flushes_fail, w.errors_expected) = (false, false);
    w.run(300);
    assert_eq!(read(&mut w, 0..written), (0, written));
}

/// Groups that blocks written one by one make, of which nobody waits for the last.
fn groups(settings: Settings, blocks: u64, pause_ms: u64) -> u64 {
    let settings = Settings { write_policy: WritePolicy::Journaled, ..settings };
    let mut w = World::new(2, settings, 8192, 400);
    w.run(1000);
    w.clock_rests = true;
    let before = w.status().groups;
    for block in 0..blocks {
        write(&mut w, block);
        w.pass_ms(pause_ms);
        w.run(20);
    }
    w.status().groups - before
}

/// A group that has its size or its age is committed, and none before.
#[test]
fn groups_are_as_large_and_as_old_as_is_wanted() {
    const BLOCKS: u64 = 2048;
    for group_bytes in [64 << 10, 1 << 20, 4 << 20, 128 << 20] {
        let count = groups(Settings { group_bytes, group_age_ms: 1 << 30, ..settings() }, BLOCKS, 0);
        let most = BLOCKS * 4096 / group_bytes;
        assert!((most.saturating_sub(1)..=most).contains(&count), "{count} groups of {group_bytes} bytes");
    }
    for (group_age_ms, expected) in [(20, 95..=100), (200, 9..=10), (1000, 1..=2)] {
        let count = groups(Settings { group_bytes: 128 << 20, group_age_ms, ..settings() }, 2000, 1);
        assert!(expected.contains(&count), "{count} groups of {group_age_ms} ms in 2 s");
    }
}
