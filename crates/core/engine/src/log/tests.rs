//! The log with a map and a medium in memory: forming records, and that recovery finds what was formed.

use std::collections::BTreeMap;

use forebay_block::{BlockNo, Buf, DeviceOp};
use forebay_format::record::{ExtentKind, RecordHeader};
use forebay_policy::{Durability, Priority};
use proptest::prelude::*;

use super::form::{Formed, Round};
use super::recovery::{Next, Recovered, Recovery};
use super::*;
use crate::interface::RecoveryError;
use crate::map::segments::{SlotKind, SlotRef};

/// A log, the map of its records, and the cache that they are written to.
pub(super) struct Rig {
    pub(super) layout: Layout,
    pub(super) map: Map,
    pub(super) log: Log,
    pub(super) cache: Vec<u8>,
    pub(super) facts: Facts,
}

pub(super) fn layout(align: u32, segment_bytes: u32, segment_count: u32) -> Layout {
    Layout { cache_id: [7; 16], generation: 1, align, segment_bytes, segment_count }
}

/// Bytes of a volume that has any block of these tests.
pub(super) const VOLUME_BYTES: u64 = 1 << 30;

impl Rig {
    pub(super) fn new(layout: Layout) -> Self {
        let planted = Planted::default();
        let bytes = u64::from(layout.segment_bytes) * u64::from(layout.segment_count);
        Self {
            layout,
            map: Map::new(&layout, planted),
            log: Log::new(layout, planted),
            cache: vec![0; (layout.segment_offset(0) + bytes) as usize],
            facts: Facts {
                now: Nanos(0),
                wall_ns: 1 << 60,
                durability: Durability::Write,
                consistent: Consistent::No,
                progress: None,
                held: false,
                may: May::FREELY,
                settling: false,
            },
        }
    }

    /// Something for the log; a block's data is all the same byte.
    pub(super) fn entry(block: u64, count: u32, kind: ExtentKind, byte: u8) -> Append {
        let data = kind.has_data().then(|| Buf::copy_of(&vec![byte; count as usize * 4096]));
        let extent = Some(Extent { block: BlockNo(block), count, kind });
        Append { extent, data, owner: AppendOwner::Part(PartKey(block)), durable: false, after: Seq(0) }
    }

    fn write(&mut self, block: u64, count: u32) {
        self.log.append(Self::entry(block, count, ExtentKind::Data, 1));
    }

    /// Forms records as long as any may be formed.
    pub(super) fn form(&mut self) -> Vec<Formed> {
        let round = self.log.begin_round();
        let formed = self.form_in(round);
        assert!(formed.windows(2).all(|two| two[0].seq.next() == two[1].seq));
        formed
    }

    fn form_in(&mut self, round: Round) -> Vec<Formed> {
        std::iter::from_fn(|| self.log.form(round, &self.facts, &mut self.map)).collect()
    }

    /// What was asked for is on the cache.
    pub(super) fn carry_out(&mut self, ask: &Ask) {
        if let DeviceOp::Write { offset, bufs, .. } = &ask.op {
            let mut at = *offset as usize;
            for buf in bufs {
                self.cache[at..at + buf.len()].copy_from_slice(buf);
                at += buf.len();
            }
        }
    }

    /// Tells of what is written; the map takes it in.
    pub(super) fn tell(&mut self) -> Vec<Told> {
        let mut all = Vec::new();
        while let Some(told) = self.log.tell(self.facts.now) {
            if let Told::Written(Written { slots: Some((first, count)), extent: Some(extent), .. }) = told {
                for n in 0..count {
                    let slot = SlotRef(first.0 + n);
                    if let Some(old) = self.map.put(slot, extent.kind != ExtentKind::Clean) {
                        self.map.cleaned(old.slot);
                    }
                }
            }
            all.push(told);
        }
        all
    }

    /// Forms what can be formed, carries it out, and tells of it.
    pub(super) fn settle(&mut self) {
        loop {
            let formed = self.form();
            for formed in &formed {
                self.carry_out(&formed.ask);
                self.log.batch_done(formed.seq);
            }
            self.tell();
            while let Some(ask) = self.log.next_summary(self.facts.wall_ns, &self.map) {
                self.carry_out(&ask);
                let Io::Summary(index) = ask.owner else { panic!("{:?}", ask.owner) };
                self.map.segments_mut().seal(index);
            }
            if formed.is_empty() {
                break;
            }
        }
    }

    fn header(&self, formed: &Formed) -> RecordHeader {
        let DeviceOp::Write { offset, bufs, .. } = &formed.ask.op else { panic!("a record is written") };
        let segment = (offset - self.layout.segment_offset(0)) / u64::from(self.layout.segment_bytes);
        let at = (offset - self.layout.segment_offset(segment as u32)) as u32;
        // The write that opens a segment begins with its header.
        let lead = if at == 0 { self.layout.align } else { 0 };
        let place = self.map.segments().get(segment as u32).seq;
        RecordHeader::decode(&self.layout, place, at + lead, &bufs[0][lead as usize..]).unwrap()
    }
}

/// Recovers what is on `cache`; a read that touches a byte of `bad` fails.
pub(super) fn recover(
    layout: Layout,
    cache: &[u8],
    clean_stop: bool,
    keeps_versions: bool,
    bad: std::ops::Range<usize>,
) -> Result<Recovered, RecoveryError> {
    let mut recovery = Recovery::new(layout, VOLUME_BYTES, clean_stop, Planted::default());
    let mut asked = VecDeque::new();
    loop {
        match recovery.next(keeps_versions) {
            Next::Ask(ask) => asked.push_back(ask),
            Next::Wait => {
                let Some(Ask { op, owner: Io::Recovery(step), .. }) = asked.pop_front() else {
                    panic!("it waits for nothing");
                };
                let result = match op {
                    DeviceOp::Read { offset, len } => {
                        let place = offset as usize..offset as usize + len;
                        match place.start < bad.end && bad.start < place.end {
                            true => Err(forebay_block::IoError::new(forebay_block::ErrorKind::Io, "read")),
                            false => Ok(Some(Buf::copy_of(&cache[place]))),
                        }
                    }
                    _ => Ok(None),
                };
                recovery.done(step, result, keeps_versions);
            }
            Next::Built => return Ok(recovery.finish()),
            Next::Failed(error) => return Err(error),
        }
    }
}

#[test]
fn a_piece_is_split_where_enough_goes_into_each_part() {
    // Blocks of two pieces; of a segment of 256 blocks, header and summary take some. Which of the second go along with the first.
    for (first, second, along) in [
        (100, 100, Some(100)),
        (200, 200, None),
        (200, 20, Some(20)),
        (250, 100, Some(0)),
        (250, 3, Some(3)),
        (245, 17, Some(0)),
    ] {
        let mut rig = Rig::new(layout(512, 1 << 20, 8));
        rig.write(0, first);
        rig.write(1000, second);
        let formed = rig.form();
        let counts: Vec<Vec<u32>> =
            formed.iter().map(|f| rig.header(f).extents.iter().map(|e| e.count).collect()).collect();
        assert_eq!(counts.iter().flatten().sum::<u32>(), first + second);
        let taken = counts[0].get(1).copied().unwrap_or(0);
        match along {
            Some(along) => {
                assert_eq!(
                    (taken, formed.iter().any(|f| f.split.is_some())),
                    (along, false),
                    "{first}, {second}"
                );
            }
            None => {
                assert!((16..=second - 16).contains(&taken), "{taken} of {second}");
                assert_eq!(formed[0].split, Some(AppendOwner::Part(PartKey(1000))));
                let blocks: Vec<u64> = formed
                    .iter()
                    .flat_map(|f| rig.header(f).extents)
                    .flat_map(|e| e.block.0..e.block.0 + u64::from(e.count))
                    .collect();
                assert_eq!(
                    blocks,
                    (0..u64::from(first)).chain(1000..1000 + u64::from(second)).collect::<Vec<_>>()
                );
            }
        }
    }
}

#[test]
fn writes_leave_the_reserve_alone_and_what_makes_room_the_last_segment() {
    let mut rig = Rig::new(layout(512, 64 << 10, 5));
    for n in 0..100 {
        rig.write(n * 100, 8);
        rig.settle();
    }
    assert!(rig.log.waits_for_room() && rig.log.has_writers());
    assert_eq!(rig.map.segments().free_count(), SEGMENTS_RESERVED);
    assert!(!rig.log.has_room(&rig.map) && rig.log.room_for_supersedes(&rig.map) > 0);
    // What is urgent opens a segment of the reserve, and no write enters that.
    let writers = rig.log.entering();
    let mut urgent = 0;
    while rig.map.segments().free_count() > 1 || !rig.log.queue.has_urgent() {
        rig.log.append_urgent(Rig::entry(urgent, 1, ExtentKind::Zero, 0));
        rig.settle();
        urgent += 1;
        assert!(urgent < 10_000);
    }
    assert_eq!((rig.map.segments().free_count(), rig.log.entering()), (1, writers));
    // The last one is for a record that moves the tail, or ends the run.
    rig.settle();
    assert!(rig.log.queue.has_urgent());
    rig.log.tail += 1;
    rig.settle();
    assert!(!rig.log.queue.has_urgent());
    assert_eq!((rig.map.segments().free_count(), rig.log.entering()), (0, writers));
}

#[test]
fn a_small_record_waits_for_company_and_a_lone_writer_does_not() {
    let mut rig = Rig::new(layout(4096, 1 << 20, 8));
    rig.write(0, 1);
    let first = rig.form();
    assert_eq!(first.len(), 1, "a lone writer never waits");
    rig.write(10, 1);
    assert_eq!(rig.form().len(), 0, "a record is in flight");
    rig.log.append_urgent(Rig::entry(50, 1, ExtentKind::Zero, 0));
    let shared = rig.form();
    assert_eq!(
        rig.header(&shared[0]).extents.len(),
        2,
        "what is urgent waits for nobody, and takes it along"
    );
    rig.write(20, 4);
    assert_eq!(rig.form().len(), 1, "four blocks are enough");
    for seq in 1..=3 {
        rig.log.batch_done(Seq(seq));
    }
    rig.tell();
    // One of those who were answered has come again, the others are expected.
    rig.write(30, 1);
    assert_eq!(rig.form().len(), 0);
    let until = rig.log.next_wake(rig.facts.now).unwrap();
    rig.facts.now = Nanos(until.0 - 1);
    assert_eq!(rig.form().len(), 0);
    rig.facts.now = until;
    assert_eq!(rig.form().len(), 1, "nobody waits for long");
    let mut other = Rig::new(layout(512, 1 << 20, 8));
    other.write(0, 1);
    assert_eq!(other.form().len(), 1);
    other.write(10, 1);
    assert_eq!(other.form().len(), 1, "a header of 512 bytes is not worth a wait");
}

#[test]
fn after_a_crash_the_first_record_stands_alone() {
    let mut rig = Rig::new(layout(512, 1 << 20, 8));
    rig.log.begin_after_crash();
    assert!(rig.form().is_empty(), "nothing is to be written");
    (0..3).for_each(|n| rig.write(n, 1));
    rig.facts.durability = Durability::Flush;
    let first = rig.form();
    assert_eq!(first.len(), 1);
    assert!(rig.header(&first[0]).extents.is_empty());
    rig.log.batch_done(Seq(1));
    rig.tell();
    assert!(rig.form().is_empty(), "it is written, and not durable");
    let ask = rig.log.flush_if_wanted().unwrap();
    assert_eq!(ask.owner, Io::Flush(Seq(1)));
    rig.log.flushed(Some(Seq(1)));
    let second = rig.form();
    assert_eq!(second.iter().map(|f| rig.header(f).extents.len()).sum::<usize>(), 3);
}

#[test]
fn writers_who_are_held_back_let_what_is_urgent_pass() {
    let mut rig = Rig::new(layout(512, 1 << 20, 8));
    rig.facts.held = true;
    rig.write(0, 1);
    assert!(rig.form().is_empty() && !rig.log.waits_for_room());
    rig.log.append_urgent(Rig::entry(9, 1, ExtentKind::Zero, 0));
    let formed = rig.form();
    assert_eq!(rig.header(&formed[0]).extents.len(), 1);
    assert!(rig.log.has_writers());
    rig.facts.held = false;
    assert_eq!(rig.form().len(), 1);
}

/// What goes with writes who are slowed down takes none of their places, and is not taken for one of them.
#[test]
fn a_portion_is_of_writes_and_of_those_who_are_slowed_down() {
    let mut rig = Rig::new(layout(512, 1 << 20, 8));
    rig.facts.may = May { awaited: Go::Slowly, patient: Go::Freely };
    (0..9).for_each(|n| rig.log.append_patient(Rig::entry(100 + n, 1, ExtentKind::Data, 1)));
    (0..8).for_each(|n| rig.write(n, 1));
    (0..3).for_each(|n| rig.log.append_urgent(Rig::entry(50 + n, 1, ExtentKind::Supersede, 0)));
    rig.facts.held = true;
    let urgent = rig.form();
    assert_eq!(urgent.iter().map(|f| (rig.header(f).extents.len(), f.kind)).collect::<Vec<_>>(), [(3, None)]);
    rig.facts.held = false;
    (0..3).for_each(|n| rig.log.append_urgent(Rig::entry(60 + n, 1, ExtentKind::Supersede, 0)));
    let formed = rig.form();
    let formed: Vec<_> = formed.iter().map(|f| (rig.header(f).extents.len(), f.kind)).collect();
    let (critical, patient) = (Some(Priority::Critical), Some(Priority::NonCritical));
    assert_eq!(formed, [(12, patient), (4, critical), (4, critical)]);
    // The one that begins a run has nothing but that.
    let mut rig = Rig::new(layout(512, 1 << 20, 8));
    rig.log.begin_after_crash();
    rig.write(0, 1);
    assert_eq!(rig.form().iter().map(|f| f.kind).collect::<Vec<_>>(), [None]);
}

/// What nobody waits for is let go seldom: then it waits for no company, and makes nobody wait.
#[test]
fn what_nobody_waits_for_waits_for_no_company() {
    let mut rig = Rig::new(layout(4096, 1 << 20, 8));
    rig.write(0, 1);
    assert_eq!(rig.form().len(), 1);
    rig.log.append_patient(Rig::entry(9, 1, ExtentKind::Data, 1));
    assert_eq!(rig.form().len(), 1, "a record is in flight");
    rig.log.append_patient(Rig::entry(10, 1, ExtentKind::Data, 1));
    rig.write(20, 4);
    let kinds: Vec<_> = rig.form().iter().filter_map(|f| f.kind).collect();
    assert_eq!(kinds, [Priority::NonCritical, Priority::Critical]);
}

#[test]
fn what_is_given_up_is_named_once_and_nothing_is_told_any_more() {
    let mut rig = Rig::new(layout(512, 1 << 20, 8));
    rig.facts.durability = Durability::Flush;
    rig.log.append(Append { durable: true, ..Rig::entry(1, 1, ExtentKind::Data, 1) });
    rig.form();
    rig.log.batch_done(Seq(1));
    rig.tell();
    rig.write(2, 1);
    rig.form();
    rig.write(3, 1);
    rig.log.append_urgent(Rig::entry(4, 1, ExtentKind::Zero, 0));
    let given_up = rig.log.abandon();
    let blocks: Vec<_> = given_up.iter().map(|(_, extent)| extent.map(|e| e.block.0)).collect();
    assert_eq!(
        blocks,
        [Some(2), Some(4), Some(3), None],
        "in flight, urgent, queued; the first waited for durability"
    );
    assert_eq!(given_up[3].0, AppendOwner::Part(PartKey(1)));
    rig.log.batch_done(Seq(2));
    rig.log.flushed(None);
    assert_eq!(rig.log.tell(Nanos(0)), None);
}

#[test]
fn quiet_makes_a_record_that_proves_the_last() {
    let mut rig = Rig::new(layout(512, 1 << 20, 8));
    rig.write(0, 1);
    rig.settle();
    let at = rig.log.next_wake(Nanos(0)).unwrap();
    for (now, runs, records) in [(Nanos(at.0 - 1), true, 0), (at, true, 1), (Nanos(2 * at.0), true, 0)] {
        rig.facts.now = now;
        rig.log.prove(now, runs, &rig.map);
        let formed = rig.form();
        assert_eq!(formed.len(), records, "{now:?}");
        for formed in formed {
            let header = rig.header(&formed);
            assert_eq!((header.extents.len(), header.durable_upto), (0, Seq(1)));
            rig.carry_out(&formed.ask);
            rig.log.batch_done(formed.seq);
            rig.tell();
        }
    }
    assert!(rig.log.is_quiet());
}

#[derive(Clone, Debug)]
enum Step {
    Put {
        block: u64,
        count: u32,
        kind: ExtentKind,
        urgent: bool,
    },
    /// All of what is formed and not written yet is written, or so many records of it.
    Write(u64),
}

fn step() -> impl Strategy<Value = Step> {
    let kinds = vec![ExtentKind::Data, ExtentKind::Data, ExtentKind::Zero, ExtentKind::Supersede];
    let put = (0u64..40, 1u32..12, prop::sample::select(kinds), any::<bool>());
    prop_oneof![
        3 => put.prop_map(|(block, count, kind, urgent)| Step::Put { block, count, kind, urgent }),
        1 => (0u64..6).prop_map(Step::Write),
    ]
}

proptest! {
    /// A crash at any instant: recovery finds exactly the records before the first one that was not written, and of each block the version of
    /// the newest of them.
    #[test]
    fn recovery_finds_what_was_written(
        steps in prop::collection::vec(step(), 1..80),
        align in prop::sample::select(vec![512u32, 4096]),
        torn in any::<bool>(),
    ) {
        let mut rig = Rig::new(layout(align, 128 << 10, 48));
        let mut formed: VecDeque<Formed> = VecDeque::new();
        // What each record says, and what is written: of each block its byte, 0 for zeroes.
        let mut said: BTreeMap<Seq, Vec<(Extent, u8)>> = BTreeMap::new();
        let mut byte = 1u8;
        for step in steps {
            match step {
                Step::Put { block, count, kind, urgent } => {
                    byte = byte % 250 + 1;
                    let entry = Rig::entry(block, count, kind, byte);
                    if urgent { rig.log.append_urgent(entry) } else { rig.log.append(entry) }
                    for record in rig.form() {
                        let header = rig.header(&record);
                        let DeviceOp::Write { bufs, .. } = &record.ask.op else { unreachable!() };
                        let mut data = bufs[1..].iter().map(|buf| buf[0]);
                        let each = header.extents.iter().map(|e| {
                            (*e, if e.kind.has_data() { data.next().unwrap() } else { 0 })
                        });
                        said.insert(record.seq, each.collect());
                        formed.push_back(record);
                    }
                }
                Step::Write(records) => {
                    for _ in 0..records {
                        let Some(record) = formed.pop_front() else { break };
                        rig.carry_out(&record.ask);
                        rig.log.batch_done(record.seq);
                    }
                    rig.tell();
                    while let Some(ask) = rig.log.next_summary(rig.facts.wall_ns, &rig.map) {
                        rig.carry_out(&ask);
                    }
                }
            }
        }
        let written = rig.log.written_upto();
        // Of what was on its way the second is there, or the first in part.
        if torn
            && let Some(DeviceOp::Write { offset, bufs, .. }) = formed.front().map(|record| &record.ask.op)
            && bufs.len() > 1
        {
            let at = *offset as usize;
            rig.cache[at..at + bufs[0].len()].copy_from_slice(&bufs[0]);
        } else if let Some(record) = formed.get(1) {
            let ask = Ask { op: record.ask.op.clone(), class: Class::Foreground, owner: record.ask.owner };
            rig.carry_out(&ask);
        }
        let mut model: BTreeMap<u64, (Seq, ExtentKind, u8)> = BTreeMap::new();
        for (seq, extents) in said.range(..=written) {
            for (extent, byte) in extents {
                for block in extent.block.0..extent.block.0 + u64::from(extent.count) {
                    match extent.kind {
                        ExtentKind::Supersede => model.remove(&block),
                        kind => model.insert(block, (*seq, kind, *byte)),
                    };
                }
            }
        }
        let found = recover(rig.layout, &rig.cache, false, false, 0..0).unwrap();
        prop_assert_eq!(found.report.last_seq, written);
        prop_assert_eq!(found.log.last_seq(), written);
        prop_assert_eq!(found.map.len(), model.len());
        prop_assert_eq!(found.report.blocks_dirty as usize, model.len(), "nothing was ever clean");
        for (block, (seq, kind, byte)) in model {
            let slot = found.map.lookup(BlockNo(block)).unwrap();
            let s = found.map.segments().slot(slot);
            prop_assert_eq!(found.map.segments().seq(slot), seq);
            match kind {
                ExtentKind::Zero => prop_assert_eq!(s.kind(), SlotKind::Zero),
                _ => {
                    let at = (rig.layout.segment_offset(slot.segment()) + u64::from(s.offset())) as usize;
                    prop_assert!(rig.cache[at..at + 4096].iter().all(|b| *b == byte), "block {}", block);
                }
            }
        }
        // The next run goes on where the last one ended, and its records can be read, too.
        let mut next = Rig { map: found.map, log: found.log, cache: rig.cache.clone(), ..Rig::new(rig.layout) };
        next.log.append(Rig::entry(7, 3, ExtentKind::Data, 255));
        next.settle();
        let again = recover(next.layout, &next.cache, false, false, 0..0).unwrap();
        prop_assert_eq!(again.report.last_seq, Seq(written.0 + 2), "one that begins the run, and one with data");
        prop_assert!(again.map.lookup(BlockNo(9)).is_some());
    }
}
