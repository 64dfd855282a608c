//! Records and what crashes leave of what they say.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod fuzz;

use std::fs;
use std::path::PathBuf;

use forebay_record::{
    Action, Bases, Cause, Crash, Fate, Reader, Recorder, Replay, Role, SECTOR_BYTES, VolumeCrash,
    monotonic_ns,
};

const CACHE: Role = Role::Cache;
const BACKING: Role = Role::Backing;

/// A record under way, and its replay.
struct Taped {
    dir: tempfile::TempDir,
    recorder: Recorder,
}

fn sectors(value: u8, count: usize) -> Vec<u8> {
    vec![value; count * SECTOR_BYTES]
}

impl Taped {
    fn new() -> Self {
        Self::limited(u64::MAX)
    }

    fn limited(bytes_max: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for base in ["cache", "backing"] {
            fs::write(dir.path().join(base), sectors(1, 64)).unwrap();
        }
        let recorder = Recorder::create(&dir.path().join("record"), bytes_max).unwrap();
        Self { dir, recorder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn write(&self, sector: u64, value: u8, count: usize, durable: bool) -> u64 {
        let data = sectors(value, count);
        self.recorder.write(CACHE, sector * SECTOR_BYTES as u64, durable, &[&data[..100], &data[100..]])
    }

    fn written(&self, sector: u64, value: u8, durable: bool) {
        let op = self.write(sector, value, 1, durable);
        self.recorder.end(CACHE, op, 0);
    }

    fn flushed(&self) {
        let op = self.recorder.flush(CACHE);
        self.recorder.end(CACHE, op, 0);
    }

    /// A replay at the end of what was recorded until now.
    fn replay(&self) -> Replay {
        let bases = Bases {
            cache: Some(self.path("cache")),
            backing: self.path("backing"),
            label: self.path("no-label"),
            journal: self.path("no-journal"),
        };
        let mut replay = Replay::open(&self.path("record"), &bases).unwrap();
        replay.go_to(u64::MAX).unwrap();
        replay
    }

    /// The values that a crash may leave in a sector of the cache, in ascending order.
    fn left(&self, cause: Cause, sector: u64) -> Vec<u8> {
        let replay = self.replay();
        let fates = Fate::ALL.into_iter().flat_map(|fate| (0..32).map(move |seed| (fate, seed)));
        let mut values: Vec<u8> = fates
            .map(|(fate, seed)| {
                let mut bytes = [0; SECTOR_BYTES];
                let crash = Crash { cause, fate, seed };
                replay.disk(CACHE).survivor(crash).read(sector, &mut bytes).unwrap();
                assert!(bytes.iter().all(|b| *b == bytes[0]), "a sector is torn");
                bytes[0]
            })
            .collect();
        values.sort_unstable();
        values.dedup();
        values
    }

    #[track_caller]
    fn leaves(&self, sector: u64, power_cut: &[u8], kill: &[u8]) {
        assert_eq!(self.left(Cause::PowerCut, sector), power_cut, "after a power cut");
        assert_eq!(self.left(Cause::Kill, sector), kill, "after a kill");
    }
}

#[test]
fn what_is_under_way_may_survive_or_not() {
    let t = Taped::new();
    t.leaves(3, &[1], &[1]);
    let durable = t.write(3, 2, 1, true);
    t.leaves(3, &[1, 2], &[1, 2]);
    t.recorder.end(CACHE, durable, 0);
    t.leaves(3, &[2], &[2]);
    t.leaves(4, &[1], &[1]);
}

#[test]
fn what_has_ended_survives_a_kill_and_after_a_flush_a_power_cut() {
    let t = Taped::new();
    t.written(3, 2, false);
    t.leaves(3, &[1, 2], &[2]);
    t.written(3, 3, false);
    t.leaves(3, &[1, 2, 3], &[3]);
    let flush = t.recorder.flush(CACHE);
    t.written(4, 2, false);
    t.leaves(3, &[1, 2, 3], &[3]);
    t.recorder.end(CACHE, flush, 0);
    t.leaves(3, &[3], &[3]);
    t.leaves(4, &[1, 2], &[2]);
}

#[test]
fn a_write_that_was_under_way_when_a_flush_began_is_not_covered() {
    let t = Taped::new();
    let write = t.write(3, 2, 1, false);
    let flush = t.recorder.flush(CACHE);
    t.recorder.end(CACHE, write, 0);
    t.recorder.end(CACHE, flush, 0);
    t.leaves(3, &[1, 2], &[2]);
}

#[test]
fn a_durable_write_ends_the_chances_of_earlier_ones() {
    let t = Taped::new();
    t.written(3, 2, false);
    t.written(3, 3, true);
    t.leaves(3, &[3], &[3]);
    t.written(3, 4, false);
    t.leaves(3, &[3, 4], &[4]);
    t.flushed();
    t.leaves(3, &[4], &[4]);
}

#[test]
fn what_failed_stays_doubtful() {
    let t = Taped::new();
    let write = t.write(3, 2, 1, true);
    t.recorder.end(CACHE, write, 5);
    t.leaves(3, &[1, 2], &[1, 2]);
    t.written(4, 2, false);
    let flush = t.recorder.flush(CACHE);
    t.recorder.end(CACHE, flush, 5);
    t.flushed();
    t.leaves(3, &[1, 2], &[1, 2]);
    t.leaves(4, &[1, 2], &[1, 2]);
    t.written(4, 3, false);
    t.flushed();
    t.leaves(4, &[3], &[3]);
}

#[test]
fn zeroes_are_writes() {
    let t = Taped::new();
    let op = t.recorder.zero(CACHE, 0, 2 * SECTOR_BYTES as u64, true);
    t.leaves(1, &[0, 1], &[0, 1]);
    t.recorder.end(CACHE, op, 0);
    t.leaves(1, &[0, 1], &[0]);
    t.flushed();
    t.leaves(1, &[0], &[0]);
    t.leaves(2, &[1], &[1]);
}

#[test]
fn devices_are_apart() {
    let t = Taped::new();
    t.written(3, 2, false);
    let flush = t.recorder.flush(BACKING);
    t.recorder.end(BACKING, flush, 0);
    t.leaves(3, &[1, 2], &[2]);
    let mut bytes = [0; SECTOR_BYTES];
    t.replay().disk(BACKING).read_settled(3, &mut bytes).unwrap();
    assert_eq!(bytes[0], 1);
}

#[test]
fn writes_are_halved_as_wholes_and_torn_by_sectors() {
    let t = Taped::new();
    t.write(0, 2, 32, false);
    let replay = t.replay();
    let kept = |fate, seed| {
        let crash = Crash { cause: Cause::PowerCut, fate, seed };
        replay.disk(CACHE).survivor(crash).unsettled().count()
    };
    assert_eq!((kept(Fate::Kept, 0), kept(Fate::Dropped, 0)), (32, 0));
    let halved: Vec<usize> = (0..32).map(|seed| kept(Fate::Halved, seed)).collect();
    assert!(halved.iter().all(|n| [0, 32].contains(n)) && halved.contains(&0) && halved.contains(&32));
    assert!((0..32).all(|seed| (4..28).contains(&kept(Fate::Torn, seed))));
}

#[test]
fn an_image_is_what_its_sectors_are() {
    let t = Taped::new();
    t.written(3, 2, true);
    t.write(62, 3, 1, true);
    t.written(63, 4, false);
    let replay = t.replay();
    let survivor = replay.disk(CACHE).survivor(Crash { cause: Cause::Kill, fate: Fate::Kept, seed: 0 });
    survivor.write_to(&t.path("image")).unwrap();
    let image = fs::read(t.path("image")).unwrap();
    assert_eq!(image.len(), 64 * SECTOR_BYTES);
    for (sector, bytes) in image.chunks(SECTOR_BYTES).enumerate() {
        let mut wanted = [0; SECTOR_BYTES];
        survivor.read(sector as u64, &mut wanted).unwrap();
        assert_eq!(bytes, wanted);
        let value = [(3, 2), (62, 3), (63, 4)].iter().find(|(s, _)| *s == sector).map_or(1, |(_, v)| *v);
        assert_eq!(wanted[0], value, "sector {sector}");
    }
}

#[test]
fn a_lie_loses_what_was_settled() {
    let t = Taped::new();
    t.recorder.open(CACHE, "cache", 0);
    t.written(3, 2, true);
    t.written(4, 2, true);
    let bases = Bases {
        cache: None,
        backing: t.path("backing"),
        label: t.path("no-label"),
        journal: t.path("no-journal"),
    };
    let mut replay = Replay::open(&t.path("record"), &bases).unwrap();
    replay.disk_mut(CACHE).lie(2);
    replay.go_to(u64::MAX).unwrap();
    let mut bytes = [9; SECTOR_BYTES];
    replay.disk(CACHE).read_settled(3, &mut bytes).unwrap();
    assert_eq!(bytes[0], 2);
    replay.disk(CACHE).read_settled(4, &mut bytes).unwrap();
    assert_eq!(bytes[0], 0);
}

#[test]
fn concurrent_writes_of_one_sector_are_counted() {
    let t = Taped::new();
    t.write(3, 2, 4, false);
    t.write(7, 2, 1, false);
    assert_eq!(t.replay().disk(CACHE).overlaps(), 0);
    t.write(6, 3, 1, false);
    assert_eq!(t.replay().disk(CACHE).overlaps(), 1);
}

#[test]
fn entries_come_back_as_they_went_in() {
    let t = Taped::new();
    let before = monotonic_ns();
    t.recorder.open(BACKING, "b.img", 1 << 30);
    let write = t.write(3, 7, 2, true);
    let zero = t.recorder.zero(BACKING, 4096, 8192, true);
    let flush = t.recorder.flush(Role::Label);
    t.recorder.end(CACHE, write, 28);
    let after = monotonic_ns();
    let mut reader = Reader::open(&t.path("record")).unwrap();
    let wanted = [
        (BACKING, Action::Open { size_bytes: 1 << 30, name: "b.img".into() }),
        (CACHE, Action::Write { op: write, offset: 1536, durable: true, data: sectors(7, 2) }),
        (BACKING, Action::Zero { op: zero, offset: 4096, len: 8192, unmap: true }),
        (Role::Label, Action::Flush { op: flush }),
        (CACHE, Action::End { op: write, errno: 28 }),
    ];
    let mut last = before;
    for (number, (role, action)) in (1..).zip(wanted) {
        let entry = reader.next_entry().unwrap().unwrap();
        assert_eq!((entry.number, entry.role, &entry.action), (number, role, &action));
        assert!(entry.time_ns >= last && entry.time_ns <= after);
        last = entry.time_ns;
    }
    assert_eq!(reader.next_entry().unwrap(), None);
    assert_eq!(Reader::open(&t.path("record")).unwrap().count().unwrap(), 5);
}

#[test]
fn a_cut_off_record_ends_early_and_a_damaged_one_is_refused() {
    let t = Taped::new();
    t.written(3, 2, false);
    t.written(4, 2, false);
    let whole = fs::read(t.path("record")).unwrap();
    let read = |bytes: &[u8]| -> std::io::Result<u64> {
        fs::write(t.path("copy"), bytes).unwrap();
        let mut reader = Reader::open(&t.path("copy"))?;
        let mut count = 0;
        while reader.next_entry()?.is_some() {
            count += 1;
        }
        Ok(count)
    };
    assert_eq!(read(&whole).unwrap(), 4);
    assert_eq!(read(&whole[..whole.len() - 1]).unwrap(), 3);
    let end_of_third = 64 + 3 * 64 + 2 * SECTOR_BYTES;
    for cut in end_of_third - 64 - SECTOR_BYTES..end_of_third {
        assert_eq!(read(&whole[..cut]).unwrap(), 2, "cut off at {cut}");
    }
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 1;
        assert!(read(&damaged).is_err(), "byte {at} was changed");
    }
}

/// A second record, of the run after a crash at the end of the first one.
#[test]
fn a_crash_is_followed_by_a_run_on_what_it_left() {
    let t = Taped::new();
    t.written(3, 2, true);
    t.written(4, 2, false);
    t.write(5, 2, 1, false);
    t.written(6, 2, false);
    let second = Taped::new();
    second.written(6, 3, false);
    let crash = |cause, fate| Crash { cause, fate, seed: 0 };
    // What a power cut in the second run leaves in sectors 3 to 6, after `first` and without or with a flush.
    let left = |first: Crash, flushed: bool, fate| -> Vec<u8> {
        // That it is another fate for the backing is of no concern to the cache.
        let first =
            VolumeCrash { cause: first.cause, cache: first.fate, backing: Fate::Torn, seed: first.seed };
        let mut replay = t.replay().after(first, &second.path("record")).unwrap();
        replay.go_to(if flushed { 4 } else { 2 }).unwrap();
        let value = |sector| {
            let mut bytes = [0; SECTOR_BYTES];
            let survivor = replay.disk(CACHE).survivor(crash(Cause::PowerCut, fate));
            survivor.read(sector, &mut bytes).unwrap();
            bytes[0]
        };
        (3..7).map(value).collect()
    };
    second.flushed();
    let kill = |fate| crash(Cause::Kill, fate);
    assert_eq!(left(kill(Fate::Kept), false, Fate::Dropped), [2, 1, 1, 1], "the kill was no flush");
    assert_eq!(left(kill(Fate::Kept), false, Fate::Kept), [2, 2, 2, 3]);
    assert_eq!(left(kill(Fate::Kept), true, Fate::Dropped), [2, 2, 2, 3]);
    assert_eq!(left(kill(Fate::Dropped), true, Fate::Dropped), [2, 2, 1, 3]);
    let power_cut = |fate| crash(Cause::PowerCut, fate);
    assert_eq!(left(power_cut(Fate::Kept), false, Fate::Dropped), [2, 2, 2, 2], "what is there is there");
    assert_eq!(left(power_cut(Fate::Dropped), false, Fate::Kept), [2, 1, 1, 3]);
}

#[test]
fn a_full_record_says_so_and_stays_readable() {
    let t = Taped::limited(64 + 3 * (64 + SECTOR_BYTES as u64));
    for sector in 0..8 {
        t.written(sector, 2, true);
    }
    assert!(t.recorder.failure().unwrap().contains("limit"), "{:?}", t.recorder.failure());
    let entries = Reader::open(&t.path("record")).unwrap().count().unwrap();
    assert!((3..16).contains(&entries), "{entries}");
    assert!(Recorder::create(&t.path("record"), u64::MAX).is_err(), "a record was overwritten");
}

#[test]
fn what_came_after_a_failed_write_is_above_it_in_the_next_run_too() {
    let t = Taped::new();
    let failed = t.write(3, 2, 1, false);
    t.recorder.end(CACHE, failed, 5);
    t.written(3, 3, false);
    let crash = Crash { cause: Cause::Kill, fate: Fate::Kept, seed: 1 };
    let next = t.replay().disk(CACHE).crashed(crash).unwrap();
    let mut bytes = [0; SECTOR_BYTES];
    next.survivor(crash).read(3, &mut bytes).unwrap();
    assert_eq!(bytes[0], 3);
}

#[test]
fn what_a_killed_process_left_without_a_flush_can_be_lost_in_the_next_run() {
    let t = Taped::new();
    t.written(3, 2, false);
    t.written(4, 2, true);
    t.write(5, 2, 2, false);
    // Of the write that was under way one sector has landed.
    let now = tempfile::tempdir().unwrap();
    let mut image = sectors(1, 64);
    for sector in [3, 4, 6] {
        image[sector * SECTOR_BYTES..][..SECTOR_BYTES].fill(2);
    }
    fs::write(now.path().join("cache"), image).unwrap();
    let second = Taped::new();
    let bases = Bases {
        cache: Some(now.path().join("cache")),
        backing: second.path("backing"),
        label: second.path("no-label"),
        journal: second.path("no-journal"),
    };
    second.recorder.open(CACHE, "cache", 64 << 9);
    second.flushed();
    let mut replay = t.replay().continued(&second.path("record"), &bases).unwrap();
    let value = |replay: &Replay, fate: Fate, sector: u64| {
        let mut bytes = [0; SECTOR_BYTES];
        let crash = Crash { cause: Cause::PowerCut, fate, seed: 1 };
        replay.disk(CACHE).survivor(crash).read(sector, &mut bytes).unwrap();
        bytes[0]
    };
    let values = |replay: &Replay, fate: Fate| [3, 4, 5, 6].map(|sector| value(replay, fate, sector));
    assert_eq!(values(&replay, Fate::Kept), [2, 2, 1, 2]);
    assert_eq!(values(&replay, Fate::Dropped), [1, 2, 1, 1], "no flush has covered it");
    replay.go_to(u64::MAX).unwrap();
    assert_eq!(values(&replay, Fate::Dropped), [2, 2, 1, 2], "now one has");
}
