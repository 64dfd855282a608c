//! Lives of a volume without a cache, under every scheduler, on a device that ends what it was given in any order.

use forebay_policy::Settings;
use proptest::prelude::*;

use super::*;

const SECTOR: u64 = SECTOR_BYTES;
/// Sectors of the volume: few, so that requests meet.
const SECTORS: u64 = 64;
/// Nothing takes so many turns unless something is starved.
const TURNS_MAX: u32 = 200_000;
/// The idle class, as `ioprio_set(2)` encodes it.
const IDLE: u16 = 3 << 13;

/// What the sectors hold: 0, or the number of the write that they are from.
type Image = Vec<u64>;

/// What a request is to bring.
enum Wanted {
    /// These versions.
    Read(Image),
    /// So many changes of each sector are durable: those that were answered before it came.
    Flush(Vec<u64>),
    /// These sectors are changed, durably if it is forced.
    Write { first: u64, count: u64, forced: bool },
}

struct World {
    plain: PassThrough,
    depth: usize,
    now: Nanos,
    /// With each operation how often each sector had been changed when it was started.
    in_flight: Vec<(IoId, DeviceOp, Vec<u64>)>,
    held: Image,
    /// What is held once everything has been done in the order in which it came.
    newest: Image,
    /// How often each sector was changed on the device; how many of these changes are durable; and how many of them had been made when the
    /// last write there was answered.
    changed: Vec<u64>,
    durable: Vec<u64>,
    answered: Vec<u64>,
    asked: HashMap<RequestId, Wanted>,
    last: u64,
    /// Operations that were started as what nobody waits for.
    background: u64,
}

impl World {
    fn new(scheduler: SchedulerKind, depth: usize, block: u32) -> Self {
        Self::in_front_of(Backing { block, depth, read_only: false, forgets: false }, scheduler)
    }

    fn in_front_of(backing: Backing, scheduler: SchedulerKind) -> Self {
        let depth = backing.depth;
        let empty = || vec![0; SECTORS as usize];
        let plain = PassThrough::new(SECTORS * SECTOR, backing, scheduler, 0);
        Self {
            plain: PassThrough { piece_bytes: 4096, ..plain },
            depth,
            now: Nanos(1),
            in_flight: Vec::new(),
            held: empty(),
            newest: empty(),
            changed: empty(),
            durable: empty(),
            answered: empty(),
            asked: HashMap::new(),
            last: 0,
            background: 0,
        }
    }

    fn ask(&mut self, kind: u8, (first, count): (u64, u64), origin: Origin) -> RequestId {
        self.last += 1;
        let (id, version) = (RequestId(self.last), self.last);
        let count = count.min(SECTORS - first);
        let (offset, len, range) = (first * SECTOR, count * SECTOR, first as usize..(first + count) as usize);
        let fua = kind & 1 == 1;
        let forced = fua || self.plain.forgets;
        let (op, wanted) = match kind {
            0..4 => {
                self.newest[range].fill(version);
                let mut data = forebay_block::BufMut::zeroed(len as usize);
                data.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&version.to_ne_bytes()));
                let data = data.freeze();
                (Op::Write { offset, data, fua }, Wanted::Write { first, count, forced })
            }
            4 | 5 => {
                self.newest[range].fill(0);
                (Op::Zero { offset, len, unmap: true, fua }, Wanted::Write { first, count, forced })
            }
            6 => (Op::Flush, Wanted::Flush(self.answered.clone())),
            _ => (Op::Read { offset, len: len as usize }, Wanted::Read(self.newest[range].to_vec())),
        };
        self.asked.insert(id, wanted);
        self.plain.handle(Event::Request { id, op, origin }, self.now);
        id
    }

    /// Takes out what the volume has to say.
    fn poll(&mut self) {
        let mut effects = Vec::new();
        self.plain.poll(self.now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Io { id, role: Role::Backing, op, class } => self.start(id, op, class),
                Effect::Reply { id, result } => self.check(id, result.expect("no device fails")),
                _ => {}
            }
        }
        let status = self.plain.status(self.now);
        assert_eq!(status.backing_outstanding as usize, self.in_flight.len(), "told as it is");
    }

    fn start(&mut self, id: IoId, op: DeviceOp, class: Class) {
        assert!(self.in_flight.len() < self.depth, "a queue behind the queue");
        self.background += u64::from(class == Class::Background);
        let block = self.plain.block.max(SECTOR);
        let span = |op: &DeviceOp| op.offset().map(|at| (at, at + op.bytes()));
        let changes = DeviceOp::changes;
        if let Some((start, end)) = span(&op) {
            assert!(start % block == 0 && end % block == 0 && start < end, "{op:?}");
            for (_, other, _) in &self.in_flight {
                let overlaps = span(other).is_some_and(|(s, e)| start < e && s < end);
                assert!(!overlaps || !changes(&op) && !changes(other), "{op:?} beside {other:?}");
            }
        }
        self.in_flight.push((id, op, self.changed.clone()));
    }

    /// The device ends one of its operations, if it has one.
    fn end(&mut self, n: usize) {
        if self.in_flight.is_empty() {
            return;
        }
        let (id, op, before) = self.in_flight.swap_remove(n % self.in_flight.len());
        let sectors = |offset: u64, len: u64| (offset / SECTOR) as usize..((offset + len) / SECTOR) as usize;
        let mut data = None;
        let range = op.offset().map_or(0..0, |offset| sectors(offset, op.bytes()));
        match &op {
            DeviceOp::Read { len, .. } => {
                let mut read = forebay_block::BufMut::zeroed(*len);
                let held = &self.held[range];
                for (sector, version) in read.chunks_exact_mut(SECTOR as usize).zip(held) {
                    sector.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&version.to_ne_bytes()));
                }
                data = Some(read.freeze());
            }
            DeviceOp::Write { bufs, durable, .. } => {
                let all: Vec<u8> = bufs.iter().flat_map(|buf| buf.iter().copied()).collect();
                let versions = all.chunks_exact(SECTOR as usize);
                let versions: Image =
                    versions.map(|s| u64::from_ne_bytes(s[..8].try_into().unwrap())).collect();
                self.held[range.clone()].copy_from_slice(&versions);
                self.changed[range.clone()].iter_mut().for_each(|changes| *changes += 1);
                if *durable {
                    self.durable[range.clone()].copy_from_slice(&self.changed[range]);
                }
            }
            DeviceOp::Zero { .. } => {
                self.held[range.clone()].fill(0);
                self.changed[range].iter_mut().for_each(|changes| *changes += 1);
            }
            // What had ended when it came.
            DeviceOp::Flush => {
                let both = self.durable.iter_mut().zip(before);
                both.for_each(|(durable, before)| *durable = before.max(*durable));
            }
            DeviceOp::Commit(_) => panic!("there are no groups without a cache"),
        }
        self.now = Nanos(self.now.0 + 100_000);
        self.plain.handle(Event::Io { id, result: Ok(data) }, self.now);
    }

    fn check(&mut self, id: RequestId, reply: Reply) {
        match (self.asked.remove(&id).expect("answered once"), reply) {
            (Wanted::Read(versions), Reply::Data(data)) => {
                let read = data.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap()));
                let wanted = versions.iter().flat_map(|version| [*version; SECTOR as usize / 8]);
                assert!(read.eq(wanted), "a read sees what was asked for before it, and nothing later");
            }
            (Wanted::Flush(answered), Reply::Done) => {
                let covers =
                    self.durable.iter().zip(&answered).all(|(durable, answered)| durable >= answered);
                assert!(covers, "a flush covers what was answered");
            }
            (Wanted::Write { first, count, forced }, Reply::Done) => {
                let range = first as usize..(first + count) as usize;
                self.answered[range.clone()].copy_from_slice(&self.changed[range.clone()]);
                assert!(
                    !forced || self.durable[range.clone()] == self.changed[range],
                    "forced: it is durable"
                );
            }
            (_, reply) => panic!("{id:?} is answered with {reply:?}"),
        }
    }

    /// Until every request is answered.
    fn drain(&mut self) {
        for _ in 0..TURNS_MAX {
            self.poll();
            if self.asked.is_empty() {
                assert!(self.in_flight.is_empty(), "nothing is left");
                return;
            }
            match self.in_flight.is_empty() {
                true => {
                    let wake = self.plain.next_wake().expect("whatever waits is woken");
                    self.now = Nanos(self.now.0.max(wake.0) + 1);
                }
                false => self.end(0),
            }
        }
        panic!("{} requests are never answered", self.asked.len());
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Ask(u8, u64, u64, u8),
    Poll,
    End(usize),
    Promote(u64, u64),
    Set(usize),
}

fn origin(kind: u8) -> Origin {
    let criticality = match kind & 3 {
        0 | 1 => Criticality::None,
        2 => Criticality::Direct,
        _ => Criticality::Capped,
    };
    let ioprio = if kind & 8 == 0 { 0 } else { IDLE };
    Origin { criticality, sync: kind & 4 == 4, ioprio, pid: u32::from(kind >> 4), ..Origin::default() }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0u8..10, 0..SECTORS, 1u64..20, any::<u8>()).prop_map(|(k, f, c, o)| Step::Ask(k, f, c, o)),
        4 => Just(Step::Poll),
        6 => any::<usize>().prop_map(Step::End),
        1 => (0..SECTORS * SECTOR, 1..u64::MAX).prop_map(|(o, l)| Step::Promote(o, l)),
        1 => any::<usize>().prop_map(Step::Set),
    ];
    proptest::collection::vec(step, 1..150)
}

proptest! {
    /// Reads see what came before them and nothing later, flushes cover what was answered, and everything is answered.
    #[test]
    fn a_scheduler_decides_nothing_but_speed(
        steps in steps(),
        kind in 0..SchedulerKind::ALL.len(),
        depth in prop_oneof![Just(1usize), Just(2), Just(4), Just(128)],
        in_sectors: bool,
        forgets: bool,
    ) {
        let block = if in_sectors { 512 } else { 4096 };
        let backing = Backing { block, depth, read_only: false, forgets };
        let mut world = World::in_front_of(backing, SchedulerKind::ALL[kind]);
        for step in steps {
            match step {
                Step::Ask(kind, first, count, who) => {
                    world.ask(kind, (first, count), origin(who));
                }
                Step::Poll => world.poll(),
                Step::End(n) => world.end(n),
                Step::Promote(offset, len) => world.plain.handle(Event::Promote { offset, len }, world.now),
                Step::Set(n) => {
                    let scheduler = SchedulerKind::ALL[n % SchedulerKind::ALL.len()];
                    let command = Command::Set(Settings { scheduler, ..Settings::default() });
                    world.plain.handle(Event::Command { id: RequestId(0), command }, world.now);
                }
            }
        }
        world.drain();
        prop_assert_eq!(&world.held, &world.newest, "the last one that came stays");
        let status = world.plain.status(world.now);
        let waiting = status.backing_waiting_critical + status.backing_waiting_noncritical;
        prop_assert_eq!((status.requests, status.backing_outstanding, waiting), (0, 0, 0));
    }
}

fn critical() -> Origin {
    Origin { criticality: Criticality::Direct, sync: true, ..Origin::default() }
}

/// A write that nobody waits for is started within bounds, however many others are awaited.
#[test]
fn nothing_is_starved_by_an_endless_critical_load() {
    for scheduler in SchedulerKind::ALL.iter().copied() {
        for (depth, ioprio) in [(1, 0), (2, 0), (128, 0), (2, IDLE)] {
            let mut world = World::new(scheduler, depth, 512);
            let turn = |world: &mut World| {
                // There is always more of it than the device takes.
                while world.asked.len() < 2 * depth + 1 {
                    let first = world.last % (SECTORS - 1);
                    world.ask(0, (first, 1), critical());
                }
                world.poll();
                world.end(0);
            };
            turn(&mut world);
            let background = world.ask(0, (SECTORS - 1, 1), Origin { ioprio, ..Origin::default() });
            let turns = (0..TURNS_MAX).take_while(|_| {
                turn(&mut world);
                world.asked.contains_key(&background)
            });
            let turns = turns.count() as u32;
            println!("{scheduler} at depth {depth}, I/O priority {ioprio}: {turns} turns of 0.1 ms");
            assert!(turns < TURNS_MAX, "{scheduler} starves it at depth {depth}");
            world.drain();
        }
    }
}

/// What the scheduler is asked to tell apart; `rcp` shows it.
#[test]
fn what_nobody_waits_for_gives_way_once_somebody_is_critical() {
    let mut world = World::new(SchedulerKind::Rcp, 1, 512);
    // Nothing is known of anybody: all of them are awaited, and go in their order.
    let [first, second] = [0, 1].map(|n| world.ask(0, (n, 1), Origin::default()));
    world.poll();
    assert_eq!((world.background, world.plain.status(world.now).backing_waiting_critical), (0, 1));
    world.end(0);
    world.poll();
    assert!(!world.asked.contains_key(&first) && world.asked.contains_key(&second));
    // From here on somebody is.
    let later = world.ask(0, (8, 1), Origin::default());
    let read = world.ask(7, (9, 1), Origin::default());
    let urgent = world.ask(0, (10, 1), critical());
    let unawaited = world.ask(0, (11, 1), Origin { sync: false, ..critical() });
    let status = world.plain.status(world.now);
    assert_eq!(
        (status.backing_waiting_critical, status.backing_waiting_noncritical),
        (3, 1),
        "the first is from before"
    );
    world.poll();
    for answered in [second, later, read, urgent] {
        world.end(0);
        world.poll();
        assert!(!world.asked.contains_key(&answered) && world.asked.contains_key(&unawaited));
    }
    world.drain();
    assert_eq!(world.background, 1);
    // Somebody comes to wait for what is queued: by a hint, or as it touches the same bytes.
    let [busy, one, two, three] = [20, 21, 22, 23].map(|n| world.ask(0, (n, 1), Origin::default()));
    world.poll();
    world.plain.handle(Event::Promote { offset: 22 * SECTOR, len: 1 }, world.now);
    let behind = world.ask(7, (23, 1), Origin::default());
    assert_eq!(world.plain.status(world.now).backing_promoted, 2);
    for answered in [busy, two, three, behind] {
        assert!(world.asked.contains_key(&answered));
        world.end(0);
        world.poll();
        assert!(!world.asked.contains_key(&answered) && world.asked.contains_key(&one));
    }
    world.drain();
}

/// What nobody waits for keeps the device for no longer than a piece of it takes. It is answered when all of it is there, and fails if any of it does.
#[test]
fn a_long_write_that_nobody_waits_for_goes_in_pieces() {
    let mut world = World::new(SchedulerKind::Rcp, 1, 512);
    world.ask(0, (0, 1), critical());
    world.drain();
    // From within a piece to within another one.
    let long = world.ask(0, (6, 21), Origin::default());
    world.poll();
    let offsets = |world: &World| -> Vec<_> {
        let piece =
            |(_, op, _): &(IoId, DeviceOp, Vec<u64>)| (op.offset().unwrap() / SECTOR, op.bytes() / SECTOR);
        world.in_flight.iter().map(piece).collect()
    };
    assert_eq!((offsets(&world), world.plain.status(world.now).requests), (vec![(6, 2)], 1));
    let urgent = world.ask(0, (40, 24), critical());
    for (piece, answered) in [((40, 24), false), ((8, 8), true), ((16, 8), true), ((24, 3), true)] {
        world.end(0);
        world.poll();
        assert_eq!(offsets(&world), [piece]);
        assert_eq!((world.asked.contains_key(&urgent), world.asked.contains_key(&long)), (!answered, true));
    }
    world.drain();
    assert_eq!(world.held, world.newest);

    // Of three pieces the second one fails.
    let failing = world.ask(0, (0, 24), Origin::default());
    world.asked.remove(&failing);
    let mut replies = Vec::new();
    for n in 0..3 {
        let mut effects = Vec::new();
        world.plain.poll(world.now, &mut effects);
        for effect in effects {
            match effect {
                Effect::Io { id, .. } => {
                    let failed = Err(IoError::new(ErrorKind::Io, "write"));
                    let result = if n == 1 { failed } else { Ok(None) };
                    world.plain.handle(Event::Io { id, result }, world.now);
                }
                Effect::Reply { result, .. } => replies.push(result),
                _ => {}
            }
        }
    }
    let mut effects = Vec::new();
    world.plain.poll(world.now, &mut effects);
    replies.extend(effects.into_iter().filter_map(|effect| match effect {
        Effect::Reply { result, .. } => Some(result),
        _ => None,
    }));
    assert!(matches!(replies[..], [Err(_)]), "{replies:?}");
}

/// Who says who waits, and falls silent, is not taken at its word for good.
#[test]
fn what_was_said_of_who_waits_is_forgotten_when_nobody_says_more() {
    for by_promotion in [false, true] {
        let mut world = World::new(SchedulerKind::Rcp, 1, 512);
        if by_promotion {
            world.plain.handle(Event::Promote { offset: 0, len: 1 }, world.now);
        } else {
            world.ask(0, (0, 1), critical());
        }
        world.drain();
        let said = world.now.0;
        let mut background = |at: u64| {
            let before = world.background;
            world.now = Nanos(at);
            world.ask(0, (1, 1), Origin::default());
            world.drain();
            world.background - before
        };
        // Draining takes some of the time.
        assert_eq!(background(said + HINTED_NS / 2), 1);
        assert_eq!(background(said + HINTED_NS), 0);
        assert_eq!(background(said + 2 * HINTED_NS), 0);
    }
}

/// The order in which operations came is that of `fifo`, whoever waits for them; and `rcp` may take over at any time.
#[test]
fn the_scheduler_is_exchanged_while_requests_wait() {
    let mut world = World::new(SchedulerKind::Fifo, 1, 512);
    world.ask(0, (0, 1), critical());
    let [one, two] = [1, 2].map(|n| world.ask(0, (n, 1), Origin::default()));
    let three = world.ask(0, (3, 1), critical());
    world.poll();
    world.end(0);
    world.poll();
    world.end(0);
    world.poll();
    assert!(!world.asked.contains_key(&one), "in their order");
    let command = Command::Set(Settings { scheduler: SchedulerKind::Rcp, ..Settings::default() });
    world.plain.handle(Event::Command { id: RequestId(0), command }, world.now);
    let four = world.ask(0, (4, 1), Origin::default());
    let five = world.ask(0, (5, 1), critical());
    // The second is at the device already.
    for answered in [two, three, five] {
        world.end(0);
        world.poll();
        assert!(!world.asked.contains_key(&answered) && world.asked.contains_key(&four));
    }
    world.drain();
}
